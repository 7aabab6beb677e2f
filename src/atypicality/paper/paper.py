"""What the paper printed: its four tables, which ship with the package, and the numbers that stand only in its text.

A value is found under (metric, row, method), the same key that our own values have.
"""

import csv
from functools import cache
from importlib.resources import files

from atypicality.paper.settings import Setting

__all__ = ["NOT_COMPARABLE", "Key", "Printed", "paper_values"]

Key = tuple[str, tuple[str, ...], str]
"""Metric, row of the table, method."""
Printed = dict[Key, tuple[float, float | None]]
"""Value and standard error, where one is printed."""

NOT_COMPARABLE = ("rmsce",)
"""The paper's `rmse` columns do not follow its formula: some are below the ECE of the same bins, which a root mean
square over bins cannot be. They are shown, and no difference is taken."""

_METRICS = {"rmse": "rmsce"}
_TEXT: dict[tuple[str, str, str], Printed] = {
    ("conformal", "ImageNet", "ResNet50"): {
        ("set_size", ("all", "all"), method): (size, None)
        for method, size in {"aps": 21.3, "aa-aps": 15.6, "raps": 4.2, "aa-raps": 9.1}.items()
    },
    ("subgroups", "Fitzpatrick17k", ""): {
        ("accuracy", ("worst",), "aar"): (0.69, None),
        ("ece", ("worst",), "aar"): (0.072, None),
        ("accuracy", ("best",), "ts"): (0.63, None),
        ("accuracy", ("best",), "group-ts"): (0.63, None),
        ("ece", ("best",), "ts"): (0.062, None),
        ("ece", ("best",), "group-ts"): (0.062, None),
    },
}
"""Sections 4.3 and 5. Of Fitzpatrick17k the text does not say which of the two networks it means."""


def paper_values(experiment: str, setting: Setting | None, estimator: str) -> Printed:
    """Everything the paper prints of one setting; empty where it prints nothing.

    >>> from atypicality.paper.settings import match_folder
    >>> paper_values("balanced", match_folder("cifar10-wrn28-10").setting, "GMM")["ece", ("1",), "aar"]
    (0.041, 0.002)
    """
    if setting is None:
        return {}
    text = [_TEXT.get((experiment, setting.dataset, model), {}) for model in (setting.model, "")]
    printed = {
        _key(row): (float(row["mean"]), float(row["stderr"]))
        for row in _rows(experiment)
        if (row["model"], row["dataset"]) == (setting.model, setting.dataset)
        and row.get("atypicality", "GMM") in (estimator, "LLM")
    }
    return printed | text[0] | text[1]


def _key(row: dict[str, str]) -> Key:
    # The header of the conformal table has its two groups the wrong way round: sets of size 1 at 99 % coverage in
    # group 6 of the first column are those of confident predictions.
    place = (f"{float(row['quantile']):g}",) if "quantile" in row else (row["group_1"], row["group_2"])
    return _METRICS.get(row["metric"], row["metric"]), place, row["method"].replace("_", "-")


@cache
def _rows(experiment: str) -> tuple[dict[str, str], ...]:
    file = files("atypicality.paper") / "data" / f"{experiment}.csv"
    if not file.is_file():
        return ()
    return tuple(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))
