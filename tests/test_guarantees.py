"""Each guarantee holds over a few repetitions, and stands on its page word by word; `make guarantees` measures more."""

import re
from pathlib import Path

import numpy as np
import pytest
from guarantee_cases import GUARANTEES, Guarantee

REPETITIONS = 20
PAGE = Path(__file__).parents[1] / "docs" / "guarantees.md"


@pytest.mark.parametrize("guarantee", GUARANTEES, ids=lambda guarantee: f"{guarantee.words[:40]}-{guarantee.case}")
@pytest.mark.filterwarnings("ignore:nothing is accepted")
def test_guarantee_holds(guarantee, seed):
    measured = guarantee.measure(REPETITIONS, seed)
    assert measured.holds, f"{guarantee.words}\n{measured.line()}"


def test_the_page_states_what_is_measured_and_nothing_else():
    stated = {" ".join(words.split()) for words in re.findall(r"^- \*\*(.+?)\*\*", PAGE.read_text(), re.M | re.S)}
    assert stated == {guarantee.words for guarantee in GUARANTEES}


def test_cases_have_names_of_their_own():
    assert len({(guarantee.words, guarantee.case) for guarantee in GUARANTEES}) == len(GUARANTEES)


def event(chance):
    return lambda seed: bool(np.random.default_rng(seed).random() < chance)


def share(mean):
    return lambda seed: float(np.random.default_rng(seed).normal(mean, 0.03))


@pytest.mark.parametrize(
    ("one_repetition", "level", "side", "holds"),
    [
        (event(0.05), 0.05, "at most", True),
        (event(0.2), 0.05, "at most", False),
        (event(0.01), 1e-6, "at most", False),  # a few events where one in a million is stated
        (event(0.95), 0.95, "at least", True),
        (event(0.85), 0.95, "at least", False),
        (event(0.9), 0.9, "equal", True),
        (event(1.0), 0.9, "equal", False),
        (share(0.9), 0.9, "at least", True),
        (share(0.89), 0.9, "at least", False),
        (share(0.91), 0.9, "at least", True),
        (share(0.91), 0.9, "equal", False),
        (lambda seed: 1.0, 0.9, "at least", True),  # no spread
        (lambda seed: 0.8, 0.9, "at least", False),
    ],
)
def test_a_measurement_tells_true_statements_from_false_ones(one_repetition, level, side, holds):
    assert Guarantee("words", "case", one_repetition, level, side).measure(300).holds == holds
