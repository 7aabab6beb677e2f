"""Train the small networks whose outputs ship with the package, and write those outputs.

    python scripts/train_fashion_mnist.py --data FOLDER --out src/atypicality/datasets/data

FOLDER holds the four idx files of Fashion-MNIST (Debian: dataset-fashion-mnist). Two networks are trained from one
seed: on all 60,000 training images, and on a long-tailed version in which class i keeps 6000 * 100^(-i/9) of its
images. Needs torch; about a minute on a GPU, longer on a CPU. Results vary in the last digits between machines.
"""

import argparse
import gzip
import shutil
from pathlib import Path

import numpy as np
import torch
from torch import nn

from atypicality.outputs import ModelOutputs

CLASSES = ["T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"]
WIDTH = 48
TRAIN_ROWS = 10_000
IMBALANCE = 100


def read_idx(path: Path) -> np.ndarray:
    """One array in the idx format: two zero bytes, the type (8: bytes), the number of dimensions, their sizes, data."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if data[:3] != b"\0\0\x08":
        raise ValueError(f"{path.name} is not an idx file of bytes.")
    shape = np.frombuffer(data, ">u4", data[3], 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(shape)


def load_part(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 28, 28) and labels (n,) of "train" or "t10k"."""
    find = {kind: next(folder.glob(f"{part}-{kind}*ubyte*")) for kind in ("images", "labels")}
    return read_idx(find["images"]), read_idx(find["labels"]).astype(np.int64)


def long_tail(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Rows of a long-tailed version: class i keeps IMBALANCE^(-i/9) of its rows."""
    keep = []
    for label in range(10):
        rows = rng.permutation(np.flatnonzero(labels == label))
        keep.append(rows[: round(rows.size * IMBALANCE ** (-label / 9))])
    return np.sort(np.concatenate(keep))


def make_network() -> nn.Module:
    """Three convolutions, a penultimate layer of WIDTH units, a linear head."""

    def block(inside: int, outside: int) -> list[nn.Module]:
        return [nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(), nn.MaxPool2d(2)]

    body = nn.Sequential(
        *block(1, 32),
        *block(32, 64),
        *block(64, 128),
        nn.Flatten(),
        nn.Linear(1152, WIDTH),
        nn.BatchNorm1d(WIDTH),
        nn.GELU(),
    )
    return nn.ModuleDict({"body": body, "head": nn.Linear(WIDTH, 10)})


def train(images: torch.Tensor, labels: torch.Tensor, epochs: int, seed: int) -> nn.Module:
    """Adam with a cosine schedule, batches of 128, no augmentation: accurate and overconfident, like most networks."""
    torch.manual_seed(seed)
    network = make_network().to(images.device)
    optimizer = torch.optim.Adam(network.parameters(), 1e-3, weight_decay=1e-4)
    steps = epochs * -(-len(images) // 128)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for epoch in range(epochs):
        for batch in torch.randperm(len(images)).split(128):
            batch = batch.to(images.device)
            loss = nn.functional.cross_entropy(network["head"](network["body"](images[batch])), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        print(f"epoch {epoch + 1}/{epochs}: last batch's loss {loss.item():.4f}", flush=True)
    return network.eval()


@torch.no_grad()
def outputs_of(network: nn.Module, images: torch.Tensor, labels: np.ndarray, brightness: np.ndarray) -> ModelOutputs:
    """Logits and penultimate activations, rounded to float16: half the size, and no loss that anyone can measure."""
    embeddings = torch.cat([network["body"](batch) for batch in images.split(1000)])
    logits = network["head"](embeddings)
    return ModelOutputs(
        logits.cpu().numpy().astype(np.float16).astype(np.float32),
        embeddings=embeddings.cpu().numpy().astype(np.float16),
        labels=labels,
        attributes={"brightness": brightness},
        class_names=CLASSES,
    )


def brightness_quartile(images: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Quartile 0 .. 3 of an image's mean pixel, by edges from the training images: an attribute no network saw."""
    return np.searchsorted(edges, images.reshape(len(images), -1).mean(axis=1)).astype(np.int8)


def main() -> None:
    """Train both networks and write train, calibration and test outputs of each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_images, train_labels = load_part(arguments.data, "train")
    test_images, test_labels = load_part(arguments.data, "t10k")
    edges = np.quantile(train_images.reshape(len(train_images), -1).mean(axis=1), [0.25, 0.5, 0.75])
    rng = np.random.default_rng(arguments.seed)
    halves = np.sort(rng.permutation(len(test_labels)).reshape(2, -1), axis=1)
    settings = {"fashion-mnist": np.arange(len(train_labels)), "fashion-mnist-lt": long_tail(train_labels, rng)}

    def prepare(images: np.ndarray) -> torch.Tensor:
        return (torch.from_numpy(images.copy()).float().div(255).sub(0.2860).div(0.3530)).unsqueeze(1).to(device)

    for name, rows in settings.items():
        network = train(
            prepare(train_images[rows]),
            torch.from_numpy(train_labels[rows]).to(device),
            arguments.epochs,
            arguments.seed,
        )
        shown = np.sort(rng.permutation(rows)[:TRAIN_ROWS])
        parts = {"train": (train_images, train_labels, shown)} | {
            part: (test_images, test_labels, half) for part, half in zip(("calibration", "test"), halves, strict=True)
        }
        folder = arguments.out / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for part, (images, labels, chosen) in parts.items():
            quartile = brightness_quartile(images[chosen], edges)
            outputs = outputs_of(network, prepare(images[chosen]), labels[chosen], quartile)
            print(name, part, outputs, "accuracy", (outputs.logits.argmax(axis=1) == outputs.labels).mean(), flush=True)
            if part == "train":
                outputs.logits = None
                outputs.attributes = {}
            outputs.save(folder / f"{part}.npz")
        counts = np.bincount(train_labels[rows], minlength=10)
        np.savetxt(
            folder / "train_counts.csv",
            np.c_[CLASSES, counts],
            fmt="%s",
            delimiter=",",
            header="class,count",
            comments="",
        )


if __name__ == "__main__":
    main()
