"""The model card: the fitted numbers, what is lost, and names that are shown and never obeyed."""

import copy
import re

import bundle_cases as cases
import numpy as np
import pytest

from atypicality.head import ReliabilityHead
from atypicality.shipping.card import escape, model_card


@pytest.fixture(scope="module")
def head():
    return cases.fitted(recalibration=cases.RECALIBRATIONS["aware"])


def test_the_card_tells_the_fitted_numbers(head, tmp_path):
    head.save(tmp_path)
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    for part in ("GaussianAtypicality", "AtypicalityAwareRecalibration", "AtypicalityAwareConformal", "aty.load("):
        assert part in card
    for when, column in (("before", 2), ("after", 3)):
        for name, value in head.metrics_[when].items():
            row = next(line.split("|") for line in card.splitlines() if line.startswith(f"| {name} |"))
            assert row[column].strip() == f"{value:.4f}"
    for size in head.sizes_.values():
        assert f"| {size:,} |" in card
    assert head.fingerprint_ in card


def test_the_card_names_what_is_lost():
    few = cases.fitted(prediction_sets=cases.PREDICTION_SETS["too few"])
    assert "too few rows: sets there hold all classes" in model_card(few)
    paper = cases.fitted(prediction_sets=cases.PREDICTION_SETS["paper sets"])
    assert "the promise is approximate" in model_card(paper)
    neighbours = cases.fitted(density=cases.DENSITIES["neighbours"])
    assert "training embeddings themselves" in model_card(neighbours)
    without = cases.quiet(ReliabilityHead(density=None).fit, None, cases.outputs_of(2))
    assert "no quadrants, no warning of drift" in model_card(without)


@pytest.mark.parametrize(
    "name",
    [
        "<script>alert(1)</script>",
        "![x](http://evil.example/x.png)",
        "a\n# Heading\n\n- item",
        "`code` | *star* | _under_ | [link](javascript:alert(1))",
        "\u202eright to left\u2066",
        "&lt;b&gt; &#60;",
        "\ud800",
        "x" * 10_000,
        "",
    ],
)
def test_class_names_are_shown_and_never_obeyed(head, name):
    odd = copy.copy(head)
    odd.class_names_ = np.array([name, "b", "c", "d"])
    card = model_card(odd)
    assert len(card.splitlines()) == len(model_card(head).splitlines())
    line = next(line for line in card.splitlines() if line.startswith("0. "))
    assert len(line) < 300
    assert not re.search(r"(?<!\\)[`*_\[\]()!|#<>~]|<|[\u202a-\u202e\u2066-\u2069]", line.replace("(empty)", "")[3:])
    card.encode("utf-8")


def test_escaping_keeps_letters():
    assert escape("Größe 4 猫") == "Größe 4 猫"
    assert escape("a.b") == "a\\.b"
    assert escape("1 < 2 & 3") == "1 &lt; 2 &amp; 3"
