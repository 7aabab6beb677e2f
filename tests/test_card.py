"""The model card: the fitted numbers, what is lost, and names that are shown and never obeyed."""

import copy
import re
from datetime import UTC, datetime

import bundle_cases as cases
import numpy as np
import pytest
from scipy.stats import binomtest

from atypicality.head import ReliabilityHead
from atypicality.outputs import ModelOutputs
from atypicality.shipping.bundle import load
from atypicality.shipping.card import escape, model_card


def error_free_head(**parts):
    """A head whose calibration rows all have the label of their largest logit."""
    rows = cases.outputs_of(2)
    right = ModelOutputs(rows.logits, embeddings=rows.embeddings, labels=rows.logits.argmax(axis=1))
    return ReliabilityHead(**parts).fit(train=cases.outputs_of(1), calibration=right)


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


def test_the_card_says_what_got_worse(head):
    same = copy.copy(head)
    same.metrics_ = {
        "before": {"accuracy": 0.8, "nll": 0.5, "ece": 0.05},
        "after": {"accuracy": 0.8, "nll": 0.5, "ece": 0.05},
    }
    assert "Worse after than before" not in model_card(same)
    same.metrics_["after"] = {"accuracy": 0.7, "nll": 0.6, "ece": 0.04}
    assert "Worse after than before: accuracy, nll. A report on other labelled rows" in model_card(same)


@pytest.mark.parametrize("sets", cases.PREDICTION_SETS)
def test_the_card_counts_the_rows_behind_its_numbers_and_has_their_intervals(sets):
    head = cases.fitted(prediction_sets=cases.PREDICTION_SETS[sets])
    n = len(cases.outputs_of(2)) - head.sizes_["recalibration"]
    card = model_card(head)
    assert f"On {n} calibration rows that recalibration did not see" in card
    both = (binomtest(round(head.metrics_[when]["accuracy"] * n), n) for when in ("before", "after"))
    ends = [found.proportion_ci(method="wilson") for found in both]
    assert f"of accuracy: {' and '.join(f'{low:.4f} to {high:.4f}' for low, high in ends)}." in card
    for word, row in head.advice_.items():
        if row["count"]:
            low, high = binomtest(row["right"], row["count"]).proportion_ci(method="wilson")
            assert re.search(rf"\| {word}.* \| {row['count']} \| .* \| {low:.4f} to {high:.4f} \|", card)


def test_the_card_has_the_date_of_saving_and_the_seal_has_not(head, tmp_path):
    seal = head.save(tmp_path)
    card = tmp_path / "README.md"
    text = card.read_text(encoding="utf-8")
    date = re.search(r"\nSaved on (\d{4}-\d\d-\d\d) \(UTC\)\.\n$", text)[1]
    assert abs((datetime.now(UTC) - datetime.fromisoformat(f"{date}T00:00+00:00")).days) <= 1
    card.write_text(text.replace(date, "1999-01-01"), encoding="utf-8")
    assert load(tmp_path, sha256=seal).fingerprint_ == head.fingerprint_
    assert head.save(tmp_path) == seal


def test_the_card_names_what_is_lost():
    few = cases.fitted(prediction_sets=cases.PREDICTION_SETS["too few"])
    assert "too few rows: sets there hold all classes" in model_card(few)
    smooth = model_card(cases.fitted(prediction_sets=cases.PREDICTION_SETS["conditional"]))
    assert "of at least 0.9 on average over all inputs and weighted by each of 4 soft groups" in smooth
    paper = cases.fitted(prediction_sets=cases.PREDICTION_SETS["paper sets"])
    assert "the coverage guarantee is approximate" in model_card(paper)
    certain = cases.quiet(error_free_head)
    assert "There was no error among the recalibration rows: only the prior limits" in model_card(certain)
    neighbours = cases.fitted(density=cases.DENSITIES["neighbours"])
    assert "training embeddings themselves" in model_card(neighbours)
    without = cases.quiet(ReliabilityHead(density=None).fit, None, cases.outputs_of(2))
    assert "no quadrants, no warning of drift" in model_card(without)


@pytest.mark.parametrize("name", cases.RECALIBRATIONS)
def test_a_head_without_an_error_says_so_after_saving_and_loading(name, tmp_path):
    certain = cases.quiet(error_free_head, recalibration=cases.RECALIBRATIONS[name])
    certain.save(tmp_path)
    for head in (certain, load(tmp_path)):
        assert not np.any(head.recalibration_.errors_)
        assert "no error among the recalibration rows" in head.summary()
    assert "There was no error among the recalibration rows" in (tmp_path / "README.md").read_text(encoding="utf-8")


def test_a_head_with_errors_does_not_speak_of_them(head):
    assert head.recalibration_.errors_ > 0
    assert "no error among" not in head.summary() + model_card(head)


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
