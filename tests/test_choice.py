"""What a score says of errors, and the choice of a density by it: laws, the null, and rows that may not choose."""

import numpy as np
import pytest
from scipy.special import expit
from sklearn.metrics import roc_auc_score

import atypicality as aty
from atypicality.datasets import make_world
from atypicality.density.choice import FEWEST_ERRORS, FEWEST_ROWS, choose_density, fit_family
from atypicality.metrics.signal import auroc, error_signal, held_out_likelihoods
from atypicality.outputs import Parts

NAMES = [
    "GaussianAtypicality()",
    "GaussianAtypicality(normalize='l2')",
    "RelativeAtypicality()",
    "RelativeAtypicality(normalize='l2')",
]


def test_auroc_equals_scikit_learn_with_ties(rng):
    scores, wrong = rng.integers(0, 9, 500), rng.random(500) < 0.3
    assert auroc(scores, wrong) == pytest.approx(roc_auc_score(wrong, scores), abs=1e-12)
    assert np.isnan(auroc(scores, np.zeros(500, bool)))


def test_likelihoods_are_those_of_the_true_model(rng):
    n = 20_000
    quantile, logit = rng.permutation(n) / n, rng.normal(1.0, 1.0, n)
    right = rng.random(n) < expit(logit - 3.0 * (quantile - 0.5))
    found = held_out_likelihoods([np.exp(quantile)], expit(logit), right)[0]  # only the order of a score counts
    truth = np.log(np.where(right, expit(logit - 3.0 * (quantile - 0.5)), expit(3.0 * (quantile - 0.5) - logit)))
    # three fitted numbers cost 3 / 2n each in expectation, far below the spread of the difference allowed here
    gap = found.both - truth
    assert abs(gap.mean()) < 4 * gap.std() / np.sqrt(n) + 3 / n
    assert found.both.mean() > max(found.alone.mean(), found.confidence.mean()) + 0.01
    signal = error_signal(quantile, confidence=expit(logit), correct=right)
    assert signal.adds
    assert signal.gain == pytest.approx((found.both - found.confidence).mean())
    assert "Atypicality adds to confidence: gain 0." in str(signal)


def test_noise_is_reported_as_adding_nothing(rng):
    # 95 % intervals about a gain whose expectation is below 0: at most 2.5 % lie above it; 8 % of 200 are allowed
    adds = 0
    for _ in range(200):
        confidence = rng.uniform(0.5, 1.0, 600)
        signal = error_signal(rng.random(600), confidence=confidence, correct=rng.random(600) < confidence)
        adds += signal.adds
        assert signal.adds or "adds nothing to confidence that these rows show" in str(signal)
    assert adds <= 16


def test_too_few_errors_have_no_likelihood(rng):
    with pytest.raises(ValueError, match=r"at least 5 right and 5 wrong predictions.*got 96 right and 4 wrong"):
        error_signal(rng.random(100), confidence=np.full(100, 0.9), correct=np.arange(100) > 3)
    with pytest.raises(ValueError, match="atypicality must be finite; row 7"):
        error_signal(
            np.where(np.arange(100) == 7, np.nan, 0.0), confidence=np.full(100, 0.9), correct=np.arange(100) > 9
        )


def rows_of(rng, n, lengths):
    """Rows about one of 4 directions; those far from theirs are misclassified, and lengths say nothing."""
    labels, noise = rng.integers(0, 4, n), rng.uniform(0.05, 1.0, n)
    x = np.eye(6)[labels] + noise[:, None] * rng.standard_normal((n, 6)) / 3
    right = rng.random(n) < expit(5.0 - 8.0 * noise)
    return x * np.exp(lengths * rng.standard_normal((n, 1))), labels, right


def test_the_family_shares_sums_and_is_what_each_fit_gives(rng):
    x, labels, _ = rows_of(rng, 400, 0.5)
    family = fit_family(x, labels)
    assert sorted(family) == NAMES
    for normalize in (None, "l2"):
        alone = aty.RelativeAtypicality(normalize=normalize).fit(x, labels)
        np.testing.assert_array_equal(family[str(alone)].atypicality(x), alone.atypicality(x))
        assert family[str(alone)].statistics_ is family[str(aty.GaussianAtypicality(normalize=normalize))].statistics_
    assert sorted(fit_family(x, np.zeros(400, int))) == NAMES[:2]


@pytest.mark.parametrize("criterion", ["alone", "added"])
def test_lengths_without_meaning_are_normalised_away(criterion, rng):
    train, labels, _ = rows_of(rng, 2000, 1.0)
    x, _, right = rows_of(rng, 2000, 1.0)
    choice = choose_density(
        fit_family(train, labels), x, confidence=rng.uniform(0.5, 1.0, 2000), correct=right, criterion=criterion
    )
    assert "normalize='l2'" in choice.name
    table = {row.name: row for row in choice.candidates}
    assert table[choice.name].behind <= table[choice.name].behind_error
    assert all(row.cost >= table[choice.name].cost or row.behind > row.behind_error for row in choice.candidates)
    assert [row.cost for row in choice.candidates] == sorted(row.cost for row in choice.candidates)
    assert f"{choice.name} of 4, by 2,000 rows with {(~right).sum():,} errors: AUROC" in str(choice)


def test_equal_scores_are_decided_by_cost(rng):
    # two columns of one class pair: normalising changes nothing where all rows have length 1 already
    x, labels, right = rows_of(rng, 2000, 0.0)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    family = fit_family(unit[:1000], labels[:1000])
    family = {name: family[name] for name in NAMES[:2]}
    choice = choose_density(family, unit[1000:], confidence=np.full(1000, 0.9), correct=right[1000:])
    assert choice.name == "GaussianAtypicality()"


def test_costs_are_multiply_adds(rng):
    x, labels, right = rows_of(rng, 800, 0.0)  # 6 columns, 4 classes
    choice = choose_density(fit_family(x, labels), x, confidence=np.full(800, 0.9), correct=right)
    assert {row.name: row.cost for row in choice.candidates} == dict(
        zip(NAMES, [36 + 24, 36 + 24 + 6, 36 + 24 + 24, 36 + 24 + 24 + 6], strict=True)
    )


@pytest.mark.parametrize(("n", "errors"), [(FEWEST_ROWS - 1, 100), (1000, FEWEST_ERRORS - 1), (1000, 0)])
def test_few_rows_or_errors_take_the_stated_default(n, errors, rng):
    x, labels, _ = rows_of(rng, n, 1.0)
    choice = choose_density(fit_family(x, labels), x, confidence=np.full(n, 0.9), correct=np.arange(n) >= errors)
    assert choice.name == "RelativeAtypicality(normalize='l2')"
    assert f"by default: {n:,} rows with {errors} errors are too few to choose by" in str(choice)
    assert {row.gain for row in choice.candidates} == {None}
    assert all((row.auroc is None) == (errors == 0) for row in choice.candidates)


def test_a_head_chooses_on_recalibration_rows_alone_and_says_so(tmp_path, rng):
    train, rows = (make_world(2400, 4, atypical_noise=1.0, random_state=seed).outputs() for seed in (1, 2))
    parts = Parts(rows[:1200], rows[1200:1600], rows[1600:])
    head = aty.ReliabilityHead("choose").fit(train, parts)
    assert head.density_choice_.n_rows == 1200
    assert str(head.density_) == head.density_choice_.name
    assert f"  {head.density_choice_}\n" in head.summary()
    shuffled = [part._replaced(labels=rng.permutation(part.labels)) for part in parts[1:]]
    assert aty.ReliabilityHead("choose").fit(train, Parts(parts[0], *shuffled)).density_choice_ == head.density_choice_
    head.save(tmp_path)
    again = aty.load(tmp_path)
    assert again.density_choice_ == head.density_choice_
    assert again.density == "choose"
    assert str(head.density_choice_) in (tmp_path / "README.md").read_text("utf-8")
    chosen = head.density_choice_
    assert head.refit(rows).density_choice_ is chosen
    assert aty.ReliabilityHead().fit(train, rows).density_choice_ is None
