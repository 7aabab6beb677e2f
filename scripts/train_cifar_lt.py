"""Fine-tune an ImageNet ResNet-18 on long-tailed CIFAR, and write its outputs.

    python scripts/train_cifar_lt.py --data FOLDER --weights resnet18-f37072fd.pth --out outputs/cifar100lt-resnet18

FOLDER holds cifar-100-binary (or cifar-10-batches-bin). The setting of the paper: a ResNet-18 that was trained on
ImageNet is fine-tuned on CIFAR-LT. OUT gets train, calibration and test outputs, the last two random halves of the
balanced test set. A run that was interrupted after training goes on with the weights in OUT, and collects outputs from
where it ended. Needs torch; `--smoke` runs everything on a few random images in seconds.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from resnet import ResNet, load_resnet, prepared, weights_url
from torch import nn

from atypicality.datasets import loaders
from atypicality.datasets.samples import Images, split_rows
from atypicality.integrations.torch import collect
from atypicality.outputs import ModelOutputs
from atypicality.outputs.paths import replacing


def batches(images: Images, size: int, batch: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Normalised images and labels in their order."""
    for start in range(0, len(images), batch):
        pixels = torch.from_numpy(images.sources[start : start + batch])
        yield prepared(pixels, size), torch.from_numpy(images.labels[start : start + batch])


def augmented(pixels: torch.Tensor) -> torch.Tensor:
    """Bytes (n, 32, 32, 3), flipped at random and shifted by up to four pixels."""
    flip = torch.rand(len(pixels), device=pixels.device) < 0.5
    pixels = torch.where(flip[:, None, None, None], pixels.flip(2), pixels)
    padded = nn.functional.pad(pixels.permute(0, 3, 1, 2), (4, 4, 4, 4)).permute(0, 2, 3, 1)
    top, left = torch.randint(0, 9, (2,)).tolist()
    return padded[:, top : top + 32, left : left + 32]


def train(network: ResNet, images: Images, arguments: argparse.Namespace) -> ResNet:
    """SGD with momentum and a cosine schedule over plain cross-entropy: the tail is not favoured."""
    device = next(network.parameters()).device
    pixels, labels = torch.from_numpy(images.sources).to(device), torch.from_numpy(images.labels).to(device)
    optimizer = torch.optim.SGD(network.parameters(), arguments.learning_rate, momentum=0.9, weight_decay=5e-4)
    steps = arguments.epochs * -(-len(images) // arguments.batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    network.train()
    for epoch in range(arguments.epochs):
        for rows in torch.randperm(len(images)).split(arguments.batch_size):
            rows = rows.to(device)
            logits = network(prepared(augmented(pixels[rows]), arguments.size))
            loss = nn.functional.cross_entropy(logits, labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        print(f"epoch {epoch + 1}/{arguments.epochs}: last batch's loss {loss.item():.4f}", flush=True)
    return network.eval()


def write(network: ResNet, parts: dict[str, Images], arguments: argparse.Namespace) -> None:
    """Outputs of every part, as a file each."""
    for name, images in parts.items():
        folder = arguments.out / f"{name}.collected"
        found = collect(network, batches(images, arguments.size, 4 * arguments.batch_size), out=folder)
        outputs = ModelOutputs(
            found.logits, embeddings=found.embeddings, labels=found.labels, class_names=images.class_names
        )
        outputs.save(arguments.out / f"{name}.npz")
        right = (outputs.logits.argmax(axis=1) == outputs.labels).mean()
        print(f"{name}: {outputs}, accuracy {right:.4f}", flush=True)


def random_images(folder: Path, dataset: str) -> None:
    """A few random images in the binary format, for the smoke run."""
    rng = np.random.default_rng(0)
    folder = folder / ("cifar-10-batches-bin" if dataset == "cifar10" else "cifar-100-binary")
    folder.mkdir()
    n_classes, n_labels = (10, 1) if dataset == "cifar10" else (100, 2)
    names = "batches.meta.txt" if dataset == "cifar10" else "fine_label_names.txt"
    (folder / names).write_text("\n".join(f"class-{label}" for label in range(n_classes)))
    train_files = [f"data_batch_{number}.bin" for number in range(1, 6)] if dataset == "cifar10" else ["train.bin"]
    test_files = ["test_batch.bin"] if dataset == "cifar10" else ["test.bin"]
    for file in [*train_files, *test_files]:
        rows = rng.integers(0, 256, (2 * n_classes, n_labels + 3072), dtype=np.uint8)
        rows[:, n_labels - 1] = np.arange(2 * n_classes) % n_classes
        rows.tofile(folder / file)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with the binary version of CIFAR")
    parser.add_argument("--out", type=Path, help="folder for the outputs")
    parser.add_argument(
        "--weights", type=Path, help=f"ImageNet weights ({weights_url('resnet18')}); without them from scratch"
    )
    parser.add_argument("--dataset", choices=["cifar10", "cifar100"], default="cifar100")
    parser.add_argument("--imbalance", type=float, default=100.0, help="largest class over smallest")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--size", type=int, default=224, help="side of the enlarged images")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--smoke", action="store_true", help="a few random images, one epoch, no files needed")
    arguments = parser.parse_args(argv)
    if not arguments.smoke and (arguments.data is None or arguments.out is None):
        parser.error("--data and --out are needed, or --smoke")
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Train, collect and write."""
    load = loaders.load_cifar10 if arguments.dataset == "cifar10" else loaders.load_cifar100
    tailed = loaders.load_cifar10_lt if arguments.dataset == "cifar10" else loaders.load_cifar100_lt
    images = tailed("train", folder=arguments.data, imbalance=arguments.imbalance, random_state=arguments.seed)
    test = load("test", folder=arguments.data)
    torch.manual_seed(arguments.seed)
    network = load_resnet(arguments.weights)
    network.fc = nn.Linear(512, len(images.class_names))
    network.to("cuda" if torch.cuda.is_available() else "cpu")
    arguments.out.mkdir(parents=True, exist_ok=True)
    trained = arguments.out / "weights.pth"
    if trained.exists():
        network.load_state_dict(torch.load(trained, map_location="cpu", weights_only=True))
    else:
        train(network, images, arguments)
        with replacing(trained) as temporary:
            torch.save(network.state_dict(), temporary)
    halves = split_rows(len(test), (0.5, 0.5), random_state=arguments.seed)
    write(network, {"train": images, "calibration": test.take(halves[0]), "test": test.take(halves[1])}, arguments)


def main(argv: list[str] | None = None) -> None:
    """Run with the arguments, or on random images."""
    arguments = parse(argv)
    if not arguments.smoke:
        run(arguments)
        return
    with tempfile.TemporaryDirectory() as folder:
        random_images(Path(folder), arguments.dataset)
        arguments.data, arguments.out = Path(folder), arguments.out or Path(folder) / "out"
        arguments.epochs, arguments.size, arguments.batch_size = 1, 32, 32
        run(arguments)


if __name__ == "__main__":
    main()
