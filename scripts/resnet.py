"""ResNet-18 and -34 with the parameter names of the published ImageNet weights, which load into them as they are."""

import itertools
from pathlib import Path

import torch
from torch import nn

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BLOCKS = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3)}
"""Blocks in each of the four layers."""
WEIGHTS_URL = "https://download.pytorch.org/models/{}.pth"
WEIGHTS_FILES = {"resnet18": "resnet18-f37072fd", "resnet34": "resnet34-b627a593"}


class Block(nn.Module):
    """Two convolutions beside a shortcut (He, Zhang, Ren and Sun 2016)."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.downsample = None
        if stride != 1 or inside != outside:
            shortcut = nn.Conv2d(inside, outside, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(outside))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Block of maps (n, inside, h, w)."""
        shortcut = x if self.downsample is None else self.downsample(x)
        inner = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(inner + shortcut)


class ResNet(nn.Module):
    """Images (n, 3, h, w), normalised by MEAN and DEVIATION, to logits (n, k); 512 features enter `fc`."""

    def __init__(self, model: str = "resnet18", n_classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        widths = (64, 64, 128, 256, 512)
        for number, (inside, outside) in enumerate(itertools.pairwise(widths), start=1):
            stride = 1 if number == 1 else 2
            later = (Block(outside, outside, 1) for _ in range(BLOCKS[model][number - 1] - 1))
            self.add_module(f"layer{number}", nn.Sequential(Block(inside, outside, stride), *later))
        self.fc = nn.Linear(512, n_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of images."""
        x = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        for number in range(1, 5):
            x = self.get_submodule(f"layer{number}")(x)
        return self.fc(x.mean(dim=(2, 3)))


def weights_url(model: str) -> str:
    """Where the ImageNet weights of a model are published."""
    return WEIGHTS_URL.format(WEIGHTS_FILES[model])


def load_resnet(weights: Path | None, model: str = "resnet18") -> ResNet:
    """A network for ImageNet with the weights of a file, or with random ones."""
    network = ResNet(model)
    if weights is not None:
        network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    return network


def prepared(images: torch.Tensor, size: int) -> torch.Tensor:
    """Bytes (n, h, w, 3) as normalised images (n, 3, size, size)."""
    x = images.permute(0, 3, 1, 2).float() / 255
    if x.shape[-2:] != (size, size):
        x = nn.functional.interpolate(x, (size, size), mode="bilinear", antialias=True)
    mean, deviation = (torch.tensor(values, device=x.device).view(3, 1, 1) for values in (MEAN, DEVIATION))
    return (x - mean) / deviation
