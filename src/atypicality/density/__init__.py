"""How rare: atypicality of inputs and classes, larger is rarer."""

from atypicality.density.classes import ClassAtypicality
from atypicality.density.gaussian import GaussianAtypicality
from atypicality.density.neighbors import NeighborAtypicality
from atypicality.density.relative import RelativeAtypicality

__all__ = ["ClassAtypicality", "GaussianAtypicality", "NeighborAtypicality", "RelativeAtypicality"]
