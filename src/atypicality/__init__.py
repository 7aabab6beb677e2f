"""Reliability for any trained classifier: how rare each input and class is, and what can be trusted.

Public names load on first use, so that importing the package costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from atypicality._version import __version__

if TYPE_CHECKING:
    from atypicality import blocks, charts, datasets, llm, metrics, paper
    from atypicality.conformal import AtypicalityAwareConformal, ConditionalConformal, SplitConformal
    from atypicality.density import ClassAtypicality, GaussianAtypicality, NeighborAtypicality, RelativeAtypicality
    from atypicality.density.ratio import NeighborRatio
    from atypicality.evaluation import Evaluation, compare, evaluate
    from atypicality.groups import ClassGroups, Quadrants, QuantileGroups
    from atypicality.head import ReliabilityHead
    from atypicality.head.reliability import Reliability
    from atypicality.integrations.collecting import collect
    from atypicality.integrations.sklearn import AtypicalityAwareClassifier
    from atypicality.integrations.torch_module import ReliabilityModule as ReliabilityModule
    from atypicality.integrations.transformers import TransformersScorer as TransformersScorer
    from atypicality.llm.answer_service import AnswerJudge as AnswerJudge
    from atypicality.monitoring import Monitor, estimate_accuracy
    from atypicality.outputs import ModelOutputs, three_way_split
    from atypicality.paper import theory
    from atypicality.recalibration import (
        AdaptiveTemperatureScaling,
        AtypicalityAwareRecalibration,
        ContentFreeCalibration,
        EnsembleTemperatureScaling,
        GroupTemperatureScaling,
        TemperatureScaling,
        VectorScaling,
        estimate_class_mix,
    )
    from atypicality.report import write_monitor as write_monitor
    from atypicality.report import write_report as write_report
    from atypicality.shipping.bundle import BundleError, load
    from atypicality.shipping.bundle import save as save
    from atypicality.shipping.onnx import export_onnx as export_onnx

_NAMES = {
    "conformal": ("AtypicalityAwareConformal", "ConditionalConformal", "SplitConformal"),
    "density": ("ClassAtypicality", "GaussianAtypicality", "NeighborAtypicality", "RelativeAtypicality"),
    "density.ratio": ("NeighborRatio",),
    "evaluation": ("Evaluation", "compare", "evaluate"),
    "groups": ("ClassGroups", "Quadrants", "QuantileGroups"),
    "head": ("Reliability", "ReliabilityHead"),
    "integrations.collecting": ("collect",),
    "integrations.sklearn": ("AtypicalityAwareClassifier",),
    "integrations.torch_module": ("ReliabilityModule",),  # loads torch, so it stays out of __all__
    "monitoring": ("Monitor", "estimate_accuracy"),
    "outputs": ("ModelOutputs", "three_way_split"),
    "recalibration": (
        *("AdaptiveTemperatureScaling", "AtypicalityAwareRecalibration", "ContentFreeCalibration"),
        *("EnsembleTemperatureScaling", "GroupTemperatureScaling", "TemperatureScaling", "VectorScaling"),
        "estimate_class_mix",
    ),
    "shipping.bundle": ("BundleError", "load"),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}
_FORWARD = {"TransformersScorer": "integrations.transformers", "export_onnx": "shipping.onnx"}
_FORWARD |= {"save": "shipping.bundle", "write_monitor": "report", "write_report": "report"}
_FORWARD |= {"AnswerJudge": "llm.answer_service"}
"""What a method of an earlier room calls in a later one: here, so that no room imports what comes after it."""
_MODULES = {name: name for name in ("blocks", "charts", "datasets", "llm", "metrics", "paper")} | {
    "theory": "paper.theory"
}

__all__ = [
    "AdaptiveTemperatureScaling", "AtypicalityAwareClassifier", "AtypicalityAwareConformal",
    "AtypicalityAwareRecalibration", "BundleError", "ClassAtypicality", "ClassGroups", "ConditionalConformal",
    "ContentFreeCalibration", "EnsembleTemperatureScaling", "Evaluation", "GaussianAtypicality",
    "GroupTemperatureScaling", "ModelOutputs", "Monitor", "NeighborAtypicality", "NeighborRatio", "Quadrants",
    "QuantileGroups", "RelativeAtypicality", "Reliability", "ReliabilityHead", "SplitConformal", "TemperatureScaling",
    "VectorScaling", "__version__", "blocks", "charts", "collect", "compare", "datasets", "estimate_accuracy",
    "estimate_class_mix", "evaluate", "llm", "load", "metrics", "paper", "theory", "three_way_split",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(f"atypicality.{_HOME[name]}"), name)
    elif name in _FORWARD:
        return getattr(import_module(f"atypicality.{_FORWARD[name]}"), name)
    elif name in _MODULES:
        value = import_module(f"atypicality.{_MODULES[name]}")
    else:
        raise AttributeError(f"module 'atypicality' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_HOME})
