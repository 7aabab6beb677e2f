"""The reliability head: what is fitted, what it says of each sample, when to abstain, and whether the data drifted."""

from atypicality.head.head import ReliabilityHead
from atypicality.head.reliability import Reliability

__all__ = ["Reliability", "ReliabilityHead"]
