"""Data to try things on: bundled real outputs, and synthetic worlds with known truth."""

from atypicality.datasets.bundled import Splits, load_fashion_mnist, load_fashion_mnist_lt
from atypicality.datasets.worlds import World, make_world

__all__ = ["Splits", "World", "load_fashion_mnist", "load_fashion_mnist_lt", "make_world"]
