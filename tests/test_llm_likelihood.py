"""One number of a prompt's token log-probabilities: by hand, and the laws that tie the kinds together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atypicality.density.likelihood import KINDS, sequence_atypicality
from atypicality.llm import Template, TokenScores

LOG_PROBS = st.lists(st.floats(-50, 0), min_size=1, max_size=30).map(np.array)


def test_every_kind_by_hand():
    tokens = [np.array([-1.0, -2.0, -4.0]), np.array([-3.0])]
    inside = [np.array([False, True, True]), np.array([True])]
    by_hand = {"total": [7, 3], "per_token": [7 / 3, 3], "per_byte": [7 / 14, 3 / 2], "input": [6, 3]}
    for kind in KINDS:
        found = sequence_atypicality(tokens, kind, n_bytes=[14, 2], inside=inside)
        np.testing.assert_allclose(found, by_hand[kind], rtol=1e-15)


@given(first=LOG_PROBS, second=LOG_PROBS)
def test_totals_add_up_and_averages_lie_between(first, second):
    joined = np.r_[first, second]
    total = sequence_atypicality([first, second, joined])
    np.testing.assert_allclose(total[2], total[0] + total[1], rtol=1e-12, atol=1e-12)
    average = sequence_atypicality([first, second, joined], "per_token")
    assert average[:2].min() - 1e-9 <= average[2] <= average[:2].max() + 1e-9


@given(values=LOG_PROBS)
def test_larger_is_rarer_and_nothing_is_negative(values):
    rarer = values - 0.5
    for kind in ("total", "per_token", "per_byte"):
        typical, atypical = sequence_atypicality([values, rarer], kind, n_bytes=[10, 10])
        assert 0 <= typical < atypical


def test_sequences_without_scored_tokens_are_not_atypical():
    found = sequence_atypicality([np.empty(0)], "per_token")
    assert found.tolist() == [0.0]
    assert not np.signbit(found[0])


def test_long_sequences_are_summed_in_float64():
    values = np.full(10_000, -0.1, np.float32)
    assert sequence_atypicality([values])[0] == pytest.approx(10_000 * float(np.float32(0.1)), rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "message"),
    [("mean", "kind must be one of 'total'"), ("per_byte", "n_bytes must be given"), ("input", "inside must be given")],
)
def test_bad_requests_are_named(kind, message):
    with pytest.raises(ValueError, match=message):
        sequence_atypicality([np.array([-1.0])], kind)


# which tokens belong to the input


def scores(ends, n_tokens=None):
    return TokenScores.checked([-1.0] * len(ends), n_tokens or len(ends), ends)


def test_input_tokens_are_those_with_a_character_of_it():
    template = Template("Question: {input}\nAnswer:")
    prompt = template.fill("How far?")  # tokens: 'Question' ':' ' How' ' far' '?' '\n' 'Answer' ':'
    ends = np.cumsum([8, 1, 4, 4, 1, 1, 6, 1])
    assert ends[-1] == len(prompt)
    inside = scores(ends).inside(template.span("How far?"))
    assert inside.tolist() == [False, False, True, True, True, False, False, False]


def test_an_unscored_first_token_changes_nothing_after_it():
    ends = [9, 13, 17]
    assert scores(ends, 4).inside((10, 17)).tolist() == [False, True, True]


def test_no_token_belongs_to_an_empty_input():
    assert not scores([3, 12, 15]).inside((9, 9)).any()


def test_without_places_the_input_cannot_be_told():
    with pytest.raises(ValueError, match="does not say where tokens end"):
        TokenScores.checked([-1.0]).inside((0, 1))
