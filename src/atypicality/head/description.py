"""A fitted head in words: what it is made of, and what it changed on held-out rows."""

from typing import Any

from numpy.typing import NDArray

from atypicality.formula import ADVICE
from atypicality.metrics import accuracy, ece, nll
from atypicality.recalibration.base import error_free
from atypicality.recalibration.prediction import softmax_rows
from atypicality.terminal import html_table
from atypicality.validation import FloatArray

__all__ = ["before_and_after", "described", "described_in_html"]

REPORTED = {"accuracy": accuracy, "nll": nll, "ece": ece}
PURPOSES = ("train", "recalibration", "edges", "thresholds")
BETTER = 500  # rows for calibration
UNUSED = ("off", "not ", "left out", "dropped")  # how the form of a term of recalibration begins where it is not used


def before_and_after(logits: FloatArray, probs: FloatArray, labels: NDArray[Any]) -> dict[str, dict[str, float]]:
    """Each metric of the logits (n, k), and of recalibrated probabilities (n, k)."""
    return {
        when: {name: float(metric(values, labels)) for name, metric in REPORTED.items()}
        for when, values in (("before", softmax_rows(logits)), ("after", probs))
    }


def described(head: Any) -> str:
    """A fitted head as a few lines of text."""
    lines = [f"ReliabilityHead for {head.n_classes_} classes"]
    lines += [f"  {name:<15} {'' if name else '  '}{text}" for name, text in _parts(head)]
    lines.append("  held-out rows   before -> after recalibration")
    before, after = head.metrics_["before"], head.metrics_["after"]
    lines += [f"    {name:<13} {before[name]:.4f} -> {after[name]:.4f}" for name in REPORTED]
    if head.advice_:
        lines.append("  advice          right on rows that set no threshold")
        lines += [f"    {word:<15} {right:,} of {count:,}" for word, count, right in _words(head)]
    return "\n".join(lines)


def described_in_html(head: Any) -> str:
    """The same as tables."""
    before, after = head.metrics_["before"], head.metrics_["after"]
    changes = [(name, f"{before[name]:.4f}", f"{after[name]:.4f}") for name in before]
    words = _words(head)
    tables = [
        html_table(f"ReliabilityHead for {head.n_classes_} classes", (), _parts(head)),
        html_table("On held-out rows", ("", "before", "after recalibration"), changes),
    ]
    return "".join([*tables, html_table("Advice", ("word", "rows", "right"), words)] if words else tables)


def _parts(head: Any) -> list[tuple[str, str]]:
    """What was fitted, by name; lines without one say more of the part before them."""
    sets, forms = head.prediction_sets_, getattr(head.recalibration_, "terms_", {})
    terms = ", ".join(sorted(name for name, form in forms.items() if not form.startswith(UNUSED)))
    covered = f", {1 - float(sets.alpha):.4g} coverage" if hasattr(sets, "alpha") else ""
    parts = [
        ("rows", ", ".join(f"{name} {head.sizes_[name]:,}" for name in PURPOSES if name in head.sizes_)),
        ("", f"few rows for calibration, {BETTER} are better" if _held_out(head) < BETTER else ""),
        ("density", "none" if head.density_ is None else str(head.density_)),
        ("", "" if head.density_choice_ is None else _kept(head) + str(head.density_choice_)),
        ("", "" if head.recalibration_density_ is None else f"recalibration uses {head.recalibration_density_}"),
        ("recalibration", type(head.recalibration_).__name__),
        ("", f"terms: {terms} (see its documentation)" if terms else ""),
        ("", error_free(head.recalibration_)),
        ("prediction sets", type(sets).__name__ + (", no coverage guaranteed" if head.cross_fitted_ else covered)),
    ]
    return [(name, text) for name, text in parts if text]


def _kept(head: Any) -> str:
    """Before a choice, in a head whose latest fit had no training rows: the numbers are of other calibration rows."""
    return "" if "train" in head.sizes_ else "chosen at the first fit: "


def _held_out(head: Any) -> int:
    return int(sum(head.sizes_.get(name, 0) for name in PURPOSES[1:]))


def _words(head: Any) -> list[tuple[str, int, int]]:
    """Every word of advice with its rows and on how many it was right, in the order of the words."""
    found = ((word, head.advice_[word]) for word in ADVICE if word in head.advice_)
    return [(word, row["count"], row["right"]) for word, row in found]
