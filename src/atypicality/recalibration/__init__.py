"""Better probabilities: logits in, recalibrated probabilities out."""

from atypicality.recalibration.adaptive import AdaptiveTemperatureScaling
from atypicality.recalibration.aware import AtypicalityAwareRecalibration
from atypicality.recalibration.class_mix import estimate_class_mix
from atypicality.recalibration.content_free import ContentFreeCalibration
from atypicality.recalibration.ensemble import EnsembleTemperatureScaling
from atypicality.recalibration.grouped import GroupTemperatureScaling
from atypicality.recalibration.temperature import TemperatureScaling
from atypicality.recalibration.vector import VectorScaling

__all__ = [
    "AdaptiveTemperatureScaling",
    "AtypicalityAwareRecalibration",
    "ContentFreeCalibration",
    "EnsembleTemperatureScaling",
    "GroupTemperatureScaling",
    "TemperatureScaling",
    "VectorScaling",
    "estimate_class_mix",
]
