"""Prediction sets: probabilities in, sets with a coverage guarantee out."""

from atypicality.conformal.aware import AtypicalityAwareConformal
from atypicality.conformal.conditional import ConditionalConformal
from atypicality.conformal.split import SplitConformal

__all__ = ["AtypicalityAwareConformal", "ConditionalConformal", "SplitConformal"]
