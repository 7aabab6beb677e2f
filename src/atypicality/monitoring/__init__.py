"""A head in use: windows of counts, alarms with one false-alarm rate for a whole life, accuracy without labels."""

from atypicality.monitoring.accuracy import AccuracyEstimate, estimate_accuracy
from atypicality.monitoring.monitor import Monitor
from atypicality.monitoring.state import Alarm

__all__ = ["AccuracyEstimate", "Alarm", "Monitor", "estimate_accuracy"]
