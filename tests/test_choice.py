"""What a score says of errors, and the choice of a density by it: laws, the null, and rows that may not choose."""

import warnings

import numpy as np
import pytest
from conftest import imported
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

import atypicality as aty
from atypicality import blocks
from atypicality.density.choice import FEWEST_ERRORS, FEWEST_ROWS, Candidate, DensityChoice, choose_density
from atypicality.density.family import DensityFamily
from atypicality.density.statistics import gather_both
from atypicality.metrics.signal import (
    auroc,
    auroc_and_error,
    error_signal,
    held_out_likelihoods,
    logistic_coefficients,
)
from atypicality.outputs import Parts
from atypicality.report.changed import summarise

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


def test_the_error_of_auroc_is_delongs_by_pairs(rng):
    scores, wrong = rng.integers(0, 9, 200).astype(float), rng.random(200) < 0.3
    pairs = (scores[wrong][:, None] > scores[~wrong]) + 0.5 * (scores[wrong][:, None] == scores[~wrong])
    variance = sum(pairs.mean(axis=axis).var(ddof=1) / pairs.shape[1 - axis] for axis in (0, 1))
    assert auroc_and_error(scores, wrong) == pytest.approx((pairs.mean(), variance**0.5), abs=1e-12)


def test_evaluate_states_what_atypicality_adds_and_when_it_adds_nothing(rng):
    n = 3000
    quantile, logit = rng.random(n), rng.normal(1.5, 1.0, n)
    right = rng.random(n) < expit(logit - 4.0 * (quantile - 0.5))
    probs = np.stack([expit(logit), expit(-logit)], axis=1)
    labels = np.where(right, probs.argmax(axis=1), probs.argmin(axis=1))
    for rarity, words in ((quantile, "adds to"), (rng.random(n), "adds nothing")):
        evaluation = aty.evaluate({"model": probs}, aty.ModelOutputs(np.log(probs), labels=labels, atypicality=rarity))
        signal = error_signal(rarity, probs, labels)
        gain, alone, other = evaluation.table("overall")[-3:]
        assert (gain["metric"], gain["value"], gain["low"]) == (
            "atypicality_gain",
            pytest.approx(signal.gain),
            pytest.approx(signal.interval[0], abs=1e-6),  # 1.96 against the normal quantile
        )
        assert (alone["metric"], alone["value"], alone["standard_error"]) == (
            "atypicality_auroc",
            pytest.approx(signal.auroc),
            pytest.approx(signal.auroc_error),
        )
        assert other["value"] == pytest.approx(auroc(-probs.max(axis=1), labels != probs.argmax(axis=1)))
        assert f"Atypicality {words} " in repr(evaluation)
        assert f"Atypicality {words} " in evaluation._repr_html_()
        told = [
            "".join(getattr(part, "text", part) for part in one) for one in summarise(evaluation, None, "model").levels
        ]
        assert any(f"Beside the confidence of model, atypicality {words} " in text for text in told)


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


@pytest.mark.filterwarnings("ignore:The inner solver of NewtonCholeskySolver")  # it goes on by another
@pytest.mark.parametrize("kind", ["plain", "separable", "constant column", "far"])
def test_logistic_regressions_are_those_of_scikit_learn(kind, rng):
    x = rng.normal(size=(300, 2)) * (1e3 if kind == "far" else 1.0)
    right = x[:, 0] > 0 if kind == "separable" else rng.random(300) < expit(1 + x[:, 0])
    x[:, 1] = 0.0 if kind == "constant column" else x[:, 1]
    model = LogisticRegression(solver="newton-cholesky", tol=1e-10, max_iter=1000).fit(x, right)
    found = logistic_coefficients(np.c_[np.ones(300), x], right)
    assert_allclose(found, np.r_[model.intercept_, model.coef_[0]], rtol=1e-4, atol=1e-6)
    again = logistic_coefficients(np.c_[np.ones(300), x], right, start=found + 0.1)
    assert_allclose(again, found, rtol=1e-4, atol=1e-6)  # decrements below 1e-9 nats


@pytest.mark.parametrize("kind", ["plain", "few errors", "separable"])
def test_likelihoods_of_all_folds_together_are_those_of_each_alone(kind, rng):
    n, score = 600, rng.normal(size=600)
    right = rng.random(n) < expit(1.0 - score)
    if kind == "few errors":  # one in each fold: a fold without it is far from all of them
        right = np.arange(n) >= 5
        score[:5] += 3.0
    elif kind == "separable":
        right = score < np.quantile(score, 0.97)
    confidence = np.full(n, 0.8)
    found = held_out_likelihoods([score], confidence, right)[0].alone
    quantile = np.argsort(np.argsort(score)).astype(np.float64)
    rows = np.c_[np.ones(n), (quantile - quantile.mean()) / quantile.std()]
    order = np.lexsort((score, confidence))
    folds = np.empty(n, int)
    for side in (right, ~right):
        own = order[side[order]]
        folds[own] = np.arange(own.size) % 5
    for fold in range(5):
        own = folds == fold
        log_odds = rows[own] @ logistic_coefficients(rows[~own], right[~own])
        expected = np.log(expit(np.where(right[own], log_odds, -log_odds)))
        # a decrement of 1e-3 before the last step leaves about its square, 1e-6 nats of all rows together
        assert_allclose(found[own], expected, rtol=1e-3, atol=1e-3)


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


def test_one_pass_gives_what_each_fit_gives(rng):
    x, labels, _ = rows_of(rng, 400, 0.5)
    x, labels = x.astype(np.float32), np.where(np.arange(400) == 7, 9, labels)  # a class of one row
    family = DensityFamily().fit(x, labels)
    assert sorted(family.members_) == NAMES
    for kind in (aty.GaussianAtypicality, aty.RelativeAtypicality):
        for normalize in (None, "l2"):
            alone = kind(normalize=normalize).fit(x, labels)
            # sums in the same order, or once more about other origins: a few roundings of d + |score|
            assert_allclose(family.members_[str(alone)].atypicality(x), alone.atypicality(x), rtol=1e-11, atol=1e-11)
    scores = family.scores(x)
    for name, member in family.members_.items():
        assert_allclose(scores[name], member.atypicality(x), rtol=1e-12, atol=1e-12)


def test_a_choice_gives_what_a_head_reads_of_every_member(rng):
    x, labels, _ = rows_of(rng, 400, 0.5)
    family = DensityFamily().fit(x, labels)
    gaussian = family.members_["GaussianAtypicality()"].class_log_density(x)
    for name, found in family.scored(x).items():
        own = family.members_[name].class_log_density(x)
        assert_allclose(np.ptp(found.class_log_density - own, axis=1), 0.0, atol=1e-9)  # a constant of each row apart
        nearest = own.argmax(axis=1)
        assert_allclose(found.covariate[:, 0], -gaussian[np.arange(400), nearest], rtol=1e-10, atol=1e-10)


def test_every_row_is_read_once(rng, monkeypatch):
    x, labels, _ = rows_of(rng, 3000, 0.5)

    class Counted(np.ndarray):
        read = 0

        def __getitem__(self, rows):
            if isinstance(rows, slice):
                Counted.read += len(range(*rows.indices(len(self))))
            return super().__getitem__(rows)

    monkeypatch.setattr("atypicality.density.statistics.check_embeddings", lambda rows: rows)
    with blocks.settings(block_rows=100):
        raw, unit = gather_both(x.view(Counted), labels)
    assert Counted.read == 3000
    assert_allclose(unit.means, [(x / np.linalg.norm(x, axis=1)[:, None])[labels == y].mean(axis=0) for y in range(4)])
    assert_allclose(raw.means, [x[labels == y].mean(axis=0) for y in range(4)])


def test_parts_of_rows_merge_to_the_whole_family(rng):
    x, labels, _ = rows_of(rng, 600, 0.5)
    whole = DensityFamily().fit(x, labels).scores(x)
    grown = DensityFamily().partial_fit(x[:100], labels[:100]).partial_fit(x[100:300], labels[100:300])
    merged = grown.merge(DensityFamily().partial_fit(x[300:], labels[300:])).scores(x)
    for name, scores in whole.items():
        assert_allclose(merged[name], scores, rtol=1e-9, atol=1e-9)
    with pytest.raises(ValueError, match="other must have seen 6 columns too; it saw 2"):
        grown.merge(DensityFamily().fit(x[:, :2], labels))


@pytest.mark.parametrize("library", ["torch", "array_api_strict"])
def test_a_family_is_fitted_where_the_rows_are(library, as_device, rng):
    x, labels, _ = rows_of(rng, 300, 0.5)
    there = imported(library).asarray(x)
    host, device = DensityFamily().fit(x, labels).scores(x), DensityFamily().fit(there, labels).scores(there)
    for name, scores in host.items():
        assert_allclose(device[name], scores, rtol=1e-9, atol=1e-9)
    there[3, :] = 0.0
    with pytest.warns(UserWarning, match="train has rows of zeros"):
        assert sorted(DensityFamily().fit(there, labels).members_) == [NAMES[0], NAMES[2]]


def test_what_cannot_be_normalised_is_left_out(rng):
    x, labels, right = rows_of(rng, 1000, 1.0)
    zero = np.where(np.arange(1000)[:, None] == 5, 0.0, x)
    with pytest.warns(UserWarning, match="train has rows of zeros, which have no direction: densities of normalised"):
        assert sorted(DensityFamily().fit(zero, labels).members_) == [NAMES[0], NAMES[2]]
    family = DensityFamily().fit(x, labels)
    with pytest.warns(UserWarning, match="calibration has rows of zeros"):
        choice = choose_density(family, zero, confidence=np.full(1000, 0.9), correct=right)
    assert sorted(row.name for row in choice.candidates) == [NAMES[0], NAMES[2]]
    assert sorted(DensityFamily().fit(x[:, :1], labels).members_) == [NAMES[0], NAMES[2]]  # a sign is no direction
    one = DensityFamily().fit(x, np.zeros(1000, int))
    assert sorted(one.members_) == NAMES[:2]
    choice = choose_density(one, x[:100], confidence=np.full(100, 0.9), correct=right[:100])
    assert choice.name == NAMES[1]  # few rows: the normalised one of those there are


@pytest.mark.parametrize("flat", ["constant columns", "fewer rows than columns"])
def test_rows_without_full_rank_warn_once_and_choose(flat, rng):
    x, labels, right = rows_of(rng, 1000, 0.3)
    x = np.c_[x, np.zeros((1000, 2))] if flat == "constant columns" else np.c_[x, rng.normal(size=(1000, 60))]
    n = 1000 if flat == "constant columns" else 40
    with pytest.warns(UserWarning, match="the covariance has rank") as caught:
        family = DensityFamily().fit(x[:n], labels[:n])
    assert len(caught) == 1
    choice = choose_density(family, x, confidence=np.full(1000, 0.9), correct=right)
    assert {row.name for row in choice.candidates} >= {NAMES[0], NAMES[2]}
    assert np.isfinite(family.members_[choice.name].atypicality(x)).all()


@pytest.mark.parametrize("criterion", ["alone", "added"])
def test_lengths_without_meaning_are_normalised_away(criterion, rng):
    train, labels, _ = rows_of(rng, 2000, 1.0)
    x, _, right = rows_of(rng, 2000, 1.0)
    choice = choose_density(
        DensityFamily().fit(train, labels),
        x,
        confidence=rng.uniform(0.5, 1.0, 2000),
        correct=right,
        criterion=criterion,
    )
    assert "normalize='l2'" in choice.name
    table = {row.name: row for row in choice.candidates}
    assert table[choice.name].behind <= table[choice.name].behind_error
    assert all(row.cost >= table[choice.name].cost or row.behind > row.behind_error for row in choice.candidates)
    assert [row.cost for row in choice.candidates] == sorted(row.cost for row in choice.candidates)
    assert f"{choice.name}, best of 4 candidates by 2,000 rows with {(~right).sum():,} errors: AUROC" in str(choice)


def test_equal_scores_are_decided_by_cost(rng):
    # normalising changes nothing where all rows have length 1 already: of each pair the raw one is within 0 of the best
    x, labels, right = rows_of(rng, 2000, 0.0)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    family = DensityFamily().fit(unit[:1000], labels[:1000])
    choice = choose_density(family, unit[1000:], confidence=np.full(1000, 0.9), correct=right[1000:])
    assert choice.name in (NAMES[0], NAMES[2])


def test_costs_are_multiply_adds(rng):
    x, labels, right = rows_of(rng, 800, 0.0)  # 6 columns, 4 classes
    choice = choose_density(DensityFamily().fit(x, labels), x, confidence=np.full(800, 0.9), correct=right)
    assert {row.name: row.cost for row in choice.candidates} == dict(
        zip(NAMES, [36 + 24, 36 + 24 + 6, 36 + 24 + 24, 36 + 24 + 24 + 6], strict=True)
    )


@pytest.mark.parametrize(("n", "errors"), [(FEWEST_ROWS - 1, 100), (1000, FEWEST_ERRORS - 1), (1000, 0)])
def test_few_rows_or_errors_take_the_stated_default(n, errors, rng):
    x, labels, _ = rows_of(rng, n, 1.0)
    choice = choose_density(
        DensityFamily().fit(x, labels), x, confidence=np.full(n, 0.9), correct=np.arange(n) >= errors
    )
    assert choice.name == "RelativeAtypicality(normalize='l2')"
    assert f"by default, not chosen: {n:,} rows with {errors} errors are too few to choose by" in str(choice)
    assert {row.gain for row in choice.candidates} == {None}
    assert all((row.auroc is None) == (errors == 0) for row in choice.candidates)


def model_outputs(rng, n):
    x, labels, right = rows_of(rng, n, 1.0)
    logits = 2.0 * np.eye(4)[np.where(right, labels, (labels + 1) % 4)] + 0.3 * rng.standard_normal((n, 4))
    return aty.ModelOutputs(logits, embeddings=x, labels=labels)


@pytest.fixture(scope="module")
def chosen():
    train, rows = (model_outputs(np.random.default_rng(number), 2400) for number in (1, 2))
    parts = Parts(rows[:1200], rows[1200:1600], rows[1600:])
    return aty.ReliabilityHead().fit(train, parts), train, rows, parts


def test_a_head_chooses_on_recalibration_rows_alone_and_says_so(chosen, tmp_path, rng):
    head, train, _, parts = chosen
    assert head.density_choice_.n_rows == 1200
    assert str(head.density_) == head.density_choice_.name
    assert f"  {head.density_choice_}\n" in head.summary()
    shuffled = parts.thresholds._replaced(labels=rng.permutation(parts.thresholds.labels))
    assert aty.ReliabilityHead().fit(train, Parts(*parts[:2], shuffled)).density_choice_ == head.density_choice_
    head.save(tmp_path)
    again = aty.load(tmp_path)
    assert again.density_choice_ == head.density_choice_
    assert again.density == "auto"
    assert str(head.density_choice_) in (tmp_path / "README.md").read_text("utf-8")


def test_recalibration_reads_the_gaussian_of_the_class_nearest_by_what_was_chosen(chosen, tmp_path):
    head, train, rows, parts = chosen
    gaussian = aty.ReliabilityHead(aty.GaussianAtypicality()).fit(train, parts)
    assert head.density_choice_.name == "GaussianAtypicality(normalize='l2')"
    assert str(head.recalibration_density_) == "GaussianAtypicality()"
    assert "  recalibration uses GaussianAtypicality()\n" in head.summary()
    nearest = head.density_.class_log_density(rows.embeddings)
    own = -gaussian.density_.class_log_density(rows.embeddings)[np.arange(len(rows)), nearest.argmax(axis=1)]
    ours = head.predict(rows)
    reads = {"atypicality": own, "class_log_density": nearest}
    # sums of one pass and of a fit of its own differ in rounding: about 1e-11 of the atypicality, and of the logits
    assert_allclose(ours.proba, head.recalibration_.predict_proba(rows.logits, **reads), atol=1e-6)
    assert (own > gaussian.predict(rows).atypicality + 1e-3).any()  # of another class than the nearest by the Gaussian
    assert gaussian.density_choice_ is None
    assert gaussian.recalibration_density_ is None
    head.save(tmp_path)
    assert "Recalibration uses GaussianAtypicality()" in (tmp_path / "README.md").read_text("utf-8")
    assert_array_equal(aty.load(tmp_path).predict(rows).proba, ours.proba)


def test_another_fit_forgets_the_choice_and_refit_keeps_it(chosen):
    _, train, rows, parts = chosen
    head = aty.ReliabilityHead().fit(train, parts)
    choice, gaussian = head.density_choice_, head.recalibration_density_
    assert f"  {choice}\n" in head.summary()
    assert head.refit(rows).density_choice_ is choice
    assert f"  chosen at the first fit: {choice}\n" in head.summary()  # the numbers are of other rows
    assert head.recalibration_density_ is gaussian
    head.fit(aty.GaussianAtypicality().fit(train.embeddings, train.labels), rows)
    assert head.density_choice_ is None
    assert head.recalibration_density_ is None
    family = DensityFamily().fit(train.embeddings, train.labels)
    assert head.fit(family, parts).density_choice_ == choice


def test_an_auroc_clearly_below_one_half_is_said_and_warned_of(chosen):
    # 1,000 rows with 100 errors: a standard error of sqrt(1001 / (12 * 100 * 900)) = 0.0304
    for value, backwards in ((0.379, False), (0.377, True)):
        found = Candidate("GaussianAtypicality()", 9, value, -0.3, 0.0, 0.0, 0.01, 0.001)
        choice = DensityChoice("GaussianAtypicality()", (found,), "alone", 1000, 100)
        assert choice.backwards == backwards == ("it ranks errors backwards" in str(choice))
    assert not DensityChoice("GaussianAtypicality()", (found,), "alone", 1000, 19).backwards
    head, train, rows, _ = chosen
    labels, typical = rows.logits.argmax(axis=1), np.argsort(head.predict(rows).atypicality)[:200]
    labels[typical] = (labels[typical] + 1) % 4
    with pytest.warns(UserWarning, match=r"ranks errors backwards: .* made with model\.eval\(\)"):
        aty.ReliabilityHead(recalibration=aty.TemperatureScaling()).fit(train, rows._replaced(labels=labels))


def test_a_word_that_is_no_density_is_refused(chosen):
    with pytest.raises(ValueError, match="density, where it is text, must be one of 'auto'; got 'gaussian'"):
        aty.ReliabilityHead("gaussian").fit(chosen[1], chosen[2])


def test_a_stored_pair_of_densities_must_belong_together(chosen, tmp_path):
    _, train, _, parts = chosen
    head = aty.ReliabilityHead().fit(train, parts)
    head.density_ = aty.RelativeAtypicality().fit(train.embeddings, train.labels)
    head.save(tmp_path / "good")
    head.recalibration_density_ = aty.GaussianAtypicality().fit(train.embeddings, train.labels + 1)
    with pytest.raises(ValueError, match="both densities must have the same classes"):
        head.save(tmp_path / "bad")


def spoilt(name, outputs):
    """Outputs (train, calibration) of one kind of bad or thin input."""
    x, labels = np.array(outputs.embeddings), np.array(outputs.labels)
    if name == "zero rows in training":
        x[5] = 0.0
    elif name == "constant columns":
        x = np.c_[x, np.ones((len(x), 2))]
    elif name == "classes with one row":
        labels = np.where(np.arange(len(x)) == 7, 3, np.minimum(labels, 2))
    elif name == "one class":
        labels = np.zeros(len(x), int)
    return aty.ModelOutputs(outputs.logits, embeddings=x, labels=labels)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("zero rows in training", "train has rows of zeros"),
        ("constant columns", "For embeddings of a network this is usual and can stay"),
        ("fewer rows than columns", "rank 3 of 6"),
        ("classes with one row", None),
        ("one class", "train holds no row of class 1, 2, 3"),
    ],
)
def test_thin_training_rows_give_a_head_or_a_warning_that_names_them(name, words, chosen):
    _, train, _, parts = chosen
    wide = name == "constant columns"
    held_out = [part._replaced(embeddings=np.c_[part.embeddings, np.ones((len(part), 2))] if wide else part.embeddings)
                for part in parts]  # fmt: skip
    few = train[:7] if name == "fewer rows than columns" else spoilt(name, train)
    head = aty.ReliabilityHead(recalibration=aty.TemperatureScaling())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answer = head.fit(few, Parts(*held_out)).predict(held_out[2])
    assert np.isfinite(answer.atypicality).all()
    assert ([words in str(one.message) for one in caught] if words else caught) == ([True] if words else [])


def test_a_row_of_zeros_is_refused_where_directions_were_chosen(chosen):
    head, _, rows, _ = chosen
    assert head.density_.normalize == "l2"
    zero = np.where(np.arange(len(rows))[:, None] == 3, 0.0, rows.embeddings)
    with pytest.raises(ValueError, match=r"no row of zeros with normalize='l2'; row 3 is zero\. Drop those rows"):
        head.predict(aty.ModelOutputs(rows.logits, embeddings=zero))
    large = np.where(np.arange(len(rows))[:, None] == 3, 1e200, rows.embeddings)  # a direction, but no density
    with pytest.raises(ValueError, match="squares that fit into float64; row 3 overflows"):
        head.predict(aty.ModelOutputs(rows.logits, embeddings=large))
