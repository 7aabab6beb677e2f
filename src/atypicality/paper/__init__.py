"""The paper's experiments: its settings and tables as data, one runner for all of them, and verdicts on its claims."""

from atypicality.paper.claims import CLAIMS, Verdict
from atypicality.paper.released import PriorFreeTemperature, RelativeQuadrants, compare
from atypicality.paper.runner import Reproduction, reproduce
from atypicality.paper.settings import EXPERIMENTS, SEEDS, SETTINGS, Experiment, Setting
from atypicality.paper.sources import Source, find_sources

__all__ = [
    "CLAIMS", "EXPERIMENTS", "SEEDS", "SETTINGS", "Experiment", "PriorFreeTemperature", "RelativeQuadrants",
    "Reproduction", "Setting", "Source", "Verdict", "compare", "find_sources", "reproduce",
]  # fmt: skip
