"""The model card of a saved head: what was fitted, on how much, what it changed and where its limits are, in Markdown.

Every number comes from the fitted head. Class names are text from elsewhere: they are shown as they are, never as
Markdown or HTML.
"""

import re
import unicodedata
from collections.abc import Mapping
from typing import Any

import numpy as np

from atypicality._version import __version__
from atypicality.metrics.intervals import wilson_interval
from atypicality.recalibration.base import error_free

__all__ = ["STATED", "advice_table", "escape", "model_card"]

STATED = (
    "Not stated here, because a head does not know it: the model's name and version, the origin of the data, the "
    "intended use, and results by subgroup. `atypicality report` measures on labelled rows, by subgroup too, "
    "with intervals."
)
LONGEST_NAME = 60
MOST_NAMES = 50

_MARKDOWN = re.compile(r"([!-/:-@\[-`{-~])")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_ODD = ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp")


def escape(text: str) -> str:
    r"""Text that Markdown shows as it is, on one line and not too long.

    >>> print(escape("<b>*cat*</b>"))
    &lt;b&gt;\*cat\*&lt;\/b&gt;
    """
    shown = text if len(text) <= LONGEST_NAME else text[: LONGEST_NAME - 3] + "..."
    plain = "".join("\ufffd" if unicodedata.category(letter) in _ODD else letter for letter in shown)
    return _MARKDOWN.sub(lambda found: _ENTITIES.get(found[0], "\\" + found[0]), plain)


def model_card(head: Any) -> str:
    """The card of a fitted `ReliabilityHead`, as Markdown."""
    if hasattr(head, "_card"):
        return str(head._card())  # of a head of another kind
    sections = [
        f"# Reliability head for {head.n_classes_} classes",
        "It goes with one trained classifier, whose logits it reads, and says of every prediction how far to trust "
        f"it. Written by atypicality {__version__}.",
        STATED,
        "## Use\n\n" + _usage(head),
        "## What was fitted\n\n" + _parts(head),
        "## On how much\n\n" + _rows(head),
        "## What it changed\n\n" + _metrics(head),
        "## Limits\n\n" + "\n".join(f"- {limit}" for limit in _limits(head)),
        "## Classes\n\n" + _classes(head),
    ]
    return "\n\n".join(sections) + "\n"


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _usage(head: Any) -> str:
    if hasattr(head, "_usage"):
        return str(head._usage())  # of a head inside of a classifier
    given = "logits=logits"
    if head.density_ is not None or hasattr(head.recalibration_, "network_"):
        given += ", embeddings=embeddings"
    elif head.quantiles_ is not None:
        given += ", atypicality=atypicality"
    return (
        "```python\nimport atypicality as aty\n\n"
        'head = aty.load("path/to/this/folder")\n'
        f"answer = head.predict(aty.ModelOutputs({given}))\n```\n\n"
        "or in a shell, with a file of these arrays (`atypicality pack` makes one), and of labels to evaluate:\n\n"
        "```bash\natypicality predict path/to/this/folder outputs.npz --out answers.csv\n"
        "atypicality evaluate path/to/this/folder labelled.npz\n```"
    )


def _parts(head: Any) -> str:
    parts = {"density": head.density_, "recalibration": head.recalibration_, "prediction sets": head.prediction_sets_}
    table = _table(
        ["part", "class"], [[name, "none" if part is None else type(part).__name__] for name, part in parts.items()]
    )
    if head.density_choice_ is not None:
        table += f"\n\nThe density is {head.density_choice_}. These numbers are of the rows that chose it."
    if head.recalibration_density_ is not None:
        table += f" Recalibration uses {head.recalibration_density_}."
    return table


def _rows(head: Any) -> str:
    sizes = _table(["used for", "rows"], [[escape(name), f"{size:,}"] for name, size in head.sizes_.items()])
    return f"{sizes}\n\nFingerprint of the calibration data: `{head.fingerprint_}`."


def _metrics(head: Any) -> str:
    before, after = head.metrics_["before"], head.metrics_["after"]
    rows = [[escape(name), f"{before[name]:.4f}", f"{after[name]:.4f}"] for name in before]
    shared = getattr(head.prediction_sets_, "mode", "valid") != "valid"  # one set of rows for edges and thresholds
    n = head.sizes_["thresholds"] + (0 if shared else head.sizes_["edges"])
    told = f"On {n:,} calibration rows that recalibration did not see:\n\n" + _table(
        ["metric", "before", "after"], rows
    )
    if "accuracy" in before:
        ends = " and ".join(share_interval(both["accuracy"] * n, n) for both in (before, after))
        told += f"\n\n95 % intervals of accuracy: {ends}. Those of the others are in a report on other labelled rows."
    return told + _worse(before, after) + advice_table(head)


def _worse(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    """What is worse after than before, and how to find out whether that is chance."""
    worse = [name for name in before if (after[name] - before[name]) * (-1 if name == "accuracy" else 1) > 0]
    if not worse:
        return ""
    return f"\n\nWorse after than before: {', '.join(worse)}. A report on other labelled rows shows whether by chance."


def share_interval(hits: float, n: float) -> str:
    """Wilson's 95 % interval of a share, as text.

    >>> share_interval(9, 10)
    '0.5958 to 0.9821'
    """
    low, high = wilson_interval(np.float64(hits), np.float64(n))
    return f"{low:.4f} to {high:.4f}"


def advice_table(head: Any) -> str:
    """How often each advice was right on rows that set no threshold."""
    found = [(word, row["count"], row["right"]) for word, row in (head.advice_ or {}).items() if row.get("count")]
    if not found:
        return ""
    alone = {"ask a person": "ask a person (right: the model alone)"}
    rows = [[alone.get(word, word), f"{n:,}", f"{k / n:.4f}", share_interval(k, n)] for word, n, k in found]
    header = ["advice", "rows", "right", "95 % interval"]
    return "\n\nAdvice on rows that set no threshold:\n\n" + _table(header, rows)


def _limits(head: Any) -> list[str]:
    sets = head.prediction_sets_
    level = f"{1 - float(sets.alpha):.4g}"
    limits = [
        "All numbers above, and all guarantees, are for data like the calibration rows. Where inputs, labels or the "
        "class mix change, fit again on newer rows.",
        "Another version of the classifier needs another head.",
    ]
    if hasattr(head, "_coverage") and (said := head._coverage()):
        limits.append(said)
    elif head.cross_fitted_:
        limits.append(
            "This is the head of a cross-fitted classifier: no coverage is guaranteed for its own prediction sets. The "
            "classifier makes others, and its card states their coverage."
        )
    elif hasattr(sets, "_guarantee"):
        limits.append(f"Prediction sets hold the label with a chance of at least {level} {sets._guarantee()}")
    short = int(np.sum(getattr(sets, "too_few_", 0)))
    if getattr(sets, "mode", "valid") != "valid":
        limits.append("One set of rows chose regions and thresholds: the coverage guarantee is approximate.")
    if short:
        limits.append(f"{short} of the thresholds had too few rows: sets there hold all classes.")
    return limits + _more_limits(head)


def _more_limits(head: Any) -> list[str]:
    limits = []
    if unseen := error_free(head.recalibration_):
        limits.append(f"There was {unseen}. Fit again on more rows.")
    absent = getattr(head.recalibration_, "absent_classes_", None)
    if absent is not None and absent.size:
        limits.append(f"{absent.size} of {head.n_classes_} classes had no recalibration row.")
    if head.quantiles_ is None:
        limits.append("There is no atypicality: no quadrants, no warning of drift.")
    elif head.density_ is None:
        limits.append("Atypicality is given with the data; it must be measured as it was for the calibration rows.")
    weakness = getattr(getattr(head.density_, "_solution", None), "weakness", "")
    if weakness:
        limits.append("The density is weaker than asked for: its covariance is not of full rank.")
    held: tuple[Any, ...] = (head.density_, getattr(head.neighbor_ratio_, "neighbors_", None))
    rows = max((part.embeddings_.shape[0] for part in held if hasattr(part, "embeddings_")), default=0)
    if rows:
        limits.append(f"The bundle holds the {rows:,} training embeddings themselves: share it only where they may be.")
    return limits


def _classes(head: Any) -> str:
    if head.class_names_ is None:
        return f"{head.n_classes_} columns without names."
    names = head.class_names_.tolist()
    shown = [f"{column}. {escape(name) or '(empty)'}" for column, name in enumerate(names[:MOST_NAMES])]
    more = [] if len(names) <= MOST_NAMES else [f"\n... and {len(names) - MOST_NAMES} more."]
    return "\n".join(shown + more)
