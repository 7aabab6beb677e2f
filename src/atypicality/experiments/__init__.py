"""The paper's experiments: its settings and tables as data, one runner for all of them, and verdicts on its claims."""

from atypicality.experiments.claims import CLAIMS, Verdict
from atypicality.experiments.runner import Reproduction, reproduce
from atypicality.experiments.settings import EXPERIMENTS, SEEDS, SETTINGS, Experiment, Setting
from atypicality.experiments.sources import Source, find_sources

__all__ = [
    "CLAIMS",
    "EXPERIMENTS",
    "SEEDS",
    "SETTINGS",
    "Experiment",
    "Reproduction",
    "Setting",
    "Source",
    "Verdict",
    "find_sources",
    "reproduce",
]
