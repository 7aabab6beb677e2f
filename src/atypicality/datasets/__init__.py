"""Data to try things on: synthetic worlds with known truth."""

from atypicality.datasets.worlds import World, make_world

__all__ = ["World", "make_world"]
