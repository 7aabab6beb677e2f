"""Train the skin-lesion probe of the paper on Fitzpatrick17k, and write its outputs with skin tones.

    python scripts/train_fitzpatrick_probe.py --data FOLDER --weights resnet18-f37072fd.pth --out OUT
    atypicality reproduce subgroups --outputs OUT

FOLDER holds fitzpatrick17k.csv and images/MD5HASH.jpg (`make_fitzpatrick_standin.py` writes a stand-in); OUT is named
fitzpatrick17k-resnet18, or fitzpatrick17k-resnet34 with --model resnet34. The setting of the paper (appendix F): the
backbone is fixed; on its penultimate layer a probe of 256 units, ReLU, dropout 0.4 and 9 classes is trained for 50
epochs with Adam at 1e-4; half of the images train, a quarter calibrates, a quarter tests, in ten random splits. Groups
for analysis are the attribute `skin_tone`: Unknown, 1-2, 3-4, 5-6. Needs torch and Pillow; `--smoke` runs everything on
made-up images, `--weights random` does without a download: features of a random network, which say less.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from resnet import BLOCKS, load_resnet, prepared, weights_url
from torch import nn

from atypicality.datasets.loaders import load_fitzpatrick17k
from atypicality.datasets.samples import Images, split_rows
from atypicality.integrations.torch import collect
from atypicality.outputs import ModelOutputs

SHARES = {"train": 0.5, "calibration": 0.25, "test": 0.25}
BATCH = 64


def batches(images: Images, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Images of any shape, each brought to one size, with their labels."""
    for start in range(0, len(images), BATCH):
        rows = [images[row] for row in range(start, min(start + BATCH, len(images)))]
        pixels = torch.cat([prepared(torch.from_numpy(np.array(image))[None], size) for image, _ in rows])
        yield pixels, torch.tensor([label for _, label in rows])


def settle(network: nn.Module, images: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Let the normalising layers of a random network learn their means and variances; without, its features vanish."""
    device = next(network.parameters()).device
    network.train()
    with torch.no_grad():
        for pixels, _ in images:
            network(pixels.to(device))
    network.eval()


def make_probe(n_features: int, n_classes: int) -> nn.Module:
    """256 units, ReLU, dropout 0.4, and the classifier."""
    return nn.Sequential(nn.Linear(n_features, 256), nn.ReLU(), nn.Dropout(0.4), nn.Linear(256, n_classes))


def train(features: torch.Tensor, labels: torch.Tensor, n_classes: int, epochs: int) -> nn.Module:
    """Adam at 1e-4 over plain cross-entropy."""
    probe = make_probe(features.shape[1], n_classes).to(features.device)
    optimizer = torch.optim.Adam(probe.parameters(), 1e-4)
    for _ in range(epochs):
        for rows in torch.randperm(len(features)).split(BATCH):
            rows = rows.to(features.device)
            loss = nn.functional.cross_entropy(probe(features[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return probe.eval()


def run_split(features: ModelOutputs, images: Images, arguments: argparse.Namespace, seed: int) -> None:
    """One random split: train the probe, collect its outputs, and write the three parts."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    embeddings = torch.from_numpy(np.array(features.embeddings)).to(device)
    labels = torch.from_numpy(np.array(features.labels)).to(device)
    parts = dict(zip(SHARES, split_rows(len(images), tuple(SHARES.values()), random_state=seed), strict=True))
    torch.manual_seed(seed)
    rows = torch.from_numpy(parts["train"]).to(device)
    probe = train(embeddings[rows], labels[rows], len(images.class_names), arguments.epochs)
    found = collect(probe, zip(embeddings.split(4096), labels.split(4096), strict=True))
    outputs = ModelOutputs(
        found.logits,
        embeddings=found.embeddings,
        labels=found.labels,
        attributes=images.attributes,
        class_names=images.class_names,
    )
    folder = arguments.out / f"split-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    for name, members in parts.items():
        part = outputs[members]
        part.save(folder / f"{name}.npz")
        right = (part.logits.argmax(axis=1) == part.labels).mean()
        print(f"split {seed} {name}: {part}, accuracy {right:.4f}", flush=True)


def made_up_images(folder: Path) -> None:
    """A small table with images of noise, for the smoke run."""
    from PIL import Image

    rng = np.random.default_rng(0)
    (folder / "images").mkdir()
    lines = ["md5hash,fitzpatrick_scale,label,nine_partition_label"]
    for row in range(36):
        noise = rng.integers(0, 256, (40, 30 + row, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / "images" / f"{row:032x}.jpg")
        lines.append(f"{row:032x},{[-1, 1, 2, 3, 4, 5, 6][row % 7]},x,class {row % 9}")
    (folder / "fitzpatrick17k.csv").write_text("\n".join(lines) + "\n")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with fitzpatrick17k.csv and images")
    parser.add_argument("--out", type=Path, help="folder for the outputs")
    parser.add_argument("--model", choices=list(BLOCKS), default="resnet18", help="the backbone")
    parser.add_argument("--weights", help=f"its ImageNet weights ({' or '.join(map(weights_url, BLOCKS))}), or random")
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--size", type=int, default=224, help="side that images are brought to")
    parser.add_argument("--smoke", action="store_true", help="made-up images, random weights, one split of two epochs")
    arguments = parser.parse_args(argv)
    if not arguments.smoke and None in (arguments.data, arguments.out, arguments.weights):
        parser.error("--data, --weights and --out are needed, or --smoke")
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Features of the fixed backbone, once; then every split."""
    images = load_fitzpatrick17k(folder=arguments.data)
    torch.manual_seed(0)
    weights = None if arguments.weights in (None, "random") else Path(arguments.weights)
    backbone = load_resnet(weights, arguments.model).to("cuda" if torch.cuda.is_available() else "cpu")
    if weights is None:
        settle(backbone, batches(images, arguments.size))
    # the backbone has 1,000 classes of its own: only what enters its last layer matters
    features = collect(backbone, batches(images, arguments.size), out=arguments.out / "features")
    for seed in range(arguments.splits):
        run_split(features, images, arguments, seed)


def main(argv: list[str] | None = None) -> None:
    """Run with the arguments, or on made-up images."""
    arguments = parse(argv)
    if not arguments.smoke:
        run(arguments)
        return
    with tempfile.TemporaryDirectory() as folder:
        made_up_images(Path(folder))
        arguments.data, arguments.out = Path(folder), arguments.out or Path(folder) / "out"
        arguments.epochs, arguments.splits, arguments.size = 2, 1, 64
        run(arguments)


if __name__ == "__main__":
    main()
