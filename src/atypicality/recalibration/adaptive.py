"""Adaptive temperature scaling: a temperature for every sample, read off its embedding by a small network."""

from sklearn.base import BaseEstimator

__all__ = ["AdaptiveTemperatureScaling"]


class AdaptiveTemperatureScaling(BaseEstimator):
    """A temperature per sample from its embedding (AdaTS, Joy et al. 2022)."""
