"""Data to try things on: bundled real outputs, synthetic worlds with known truth, and loaders for the paper's data."""

from atypicality.datasets.bundled import Splits, load_fashion_mnist, load_fashion_mnist_lt
from atypicality.datasets.loaders import (
    load_ag_news,
    load_cifar10,
    load_cifar10_lt,
    load_cifar100,
    load_cifar100_lt,
    load_fitzpatrick17k,
    load_imagenet,
    load_imagenet_lt,
    load_imagenet_r,
    load_imdb,
    load_mnli,
    load_places365_lt,
    load_trec,
)
from atypicality.datasets.samples import Images, TextSamples, long_tailed_rows
from atypicality.datasets.worlds import World, make_world

__all__ = [
    "Images", "Splits", "TextSamples", "World", "load_ag_news", "load_cifar10", "load_cifar10_lt", "load_cifar100",
    "load_cifar100_lt", "load_fashion_mnist", "load_fashion_mnist_lt", "load_fitzpatrick17k", "load_imagenet",
    "load_imagenet_lt", "load_imagenet_r", "load_imdb", "load_mnli", "load_places365_lt", "load_trec",
    "long_tailed_rows", "make_world",
]  # fmt: skip
