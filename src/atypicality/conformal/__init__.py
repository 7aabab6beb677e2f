"""Prediction sets: probabilities in, sets that hold the label as often as promised out."""

from atypicality.conformal.aware import AtypicalityAwareConformal
from atypicality.conformal.split import SplitConformal

__all__ = ["AtypicalityAwareConformal", "SplitConformal"]
