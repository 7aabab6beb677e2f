"""AtypicalityAwareRecalibration: the paper's optimum, its effect on real outputs, and a default that does no harm."""

import dataclasses
import warnings

import numpy as np
import pytest
from conftest import load_outputs
from scipy.optimize import minimize
from scipy.special import log_softmax, logsumexp, softmax
from sklearn.exceptions import NotFittedError

from atypicality import AtypicalityAwareRecalibration, GaussianAtypicality, TemperatureScaling
from atypicality.datasets.worlds import make_world
from atypicality.metrics import ece
from atypicality.recalibration.terms import DIAGONAL_UP_TO, FULL_UP_TO

SHARED = ("cifar10-wrn28-10", "cifar10lt-wrn28-4")


def nll(probs, labels):
    return -np.log(probs[np.arange(labels.size), labels]).mean()


def densities(world):
    """Exact class log-densities of a world, up to a constant per row."""
    return -0.5 * ((world.embeddings[:, None] - world.class_means) ** 2).sum(axis=2)


def fit(world, estimator=None, **options):
    estimator = AtypicalityAwareRecalibration(**options) if estimator is None else estimator
    return estimator.fit(world.logits, world.labels, atypicality=world.atypicality)


def predict(estimator, world):
    return estimator.predict_proba(world.logits, atypicality=world.atypicality)


def paper_optimum(logits, labels, atypicality):
    """Smallest mean cross-entropy of the paper's form, by a general-purpose minimiser in float64."""
    z = logits.astype(np.float64)
    z = (z - z.max(axis=1, keepdims=True)) / z.std()
    a = (atypicality - atypicality.mean()) / atypicality.std()
    features, rows = np.stack([np.ones_like(a), a, a**2], axis=1), np.arange(labels.size)

    def loss(theta):
        scores = z * (features @ theta[:3])[:, None] + theta[3:]
        residual = softmax(scores, axis=1)
        residual[rows, labels] -= 1
        gradient = np.r_[features.T @ (residual * z).sum(axis=1), residual.sum(axis=0)] / labels.size
        return (logsumexp(scores, axis=1) - scores[rows, labels]).mean(), gradient

    start = np.r_[1.0, np.zeros(2 + z.shape[1])]
    for _ in range(3):  # restarts clear the memory: the line search gives up early near the optimum
        found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 5000, "ftol": 0, "gtol": 1e-9})
        start = found.x
    return found.fun


@pytest.fixture(scope="module", params=SHARED)
def real(request):
    test, train = load_outputs(request.param, "test"), load_outputs(request.param, "train_statistics")
    density = GaussianAtypicality.from_statistics(train["counts"], train["means"], train["covariance"])
    embeddings = test["embeddings"].astype(np.float64)
    return {
        "name": request.param,
        "logits": test["logits"].astype(np.float64),
        "labels": test["labels"].astype(np.intp),
        "embeddings": embeddings,
        "density": density,
        "atypicality": density.atypicality(embeddings),
        "class_log_density": density.class_log_density(embeddings),
        "counts": train["counts"],
    }


def part(real, rows):
    names = ("logits", "labels", "atypicality", "class_log_density")
    return {name: real[name][rows] for name in names}


def fit_part(estimator, data):
    return estimator.fit(**data)


def predict_part(estimator, data):
    return estimator.predict_proba(
        data["logits"], atypicality=data["atypicality"], class_log_density=data["class_log_density"]
    )


def halves(n_rows, n_splits):
    for seed in range(n_splits):
        order = np.random.default_rng(seed).permutation(n_rows)
        yield order[: n_rows // 2], order[n_rows // 2 :]


def by_quintile(probs, data):
    group = np.searchsorted(np.quantile(data["atypicality"], [0.2, 0.4, 0.6, 0.8]), data["atypicality"])
    return np.array([ece(probs[group == g], data["labels"][group == g], n_bins=10) for g in range(5)])


# -- the paper's form --------------------------------------------------------------------------------------------------


def test_paper_reaches_an_independent_optimum(seed):
    world = make_world(1500, 4, temperature=2.0, class_imbalance=5.0, atypical_noise=0.8, random_state=seed)
    found = fit(world, AtypicalityAwareRecalibration.paper())
    assert found.loss_ <= paper_optimum(world.logits, world.labels, world.atypicality) + 1e-9
    assert found.certificate_ <= 1e-9
    assert found.loss_ == pytest.approx(nll(predict(found, world), world.labels), abs=1e-12)


def test_paper_reaches_an_independent_optimum_on_real_outputs(real):
    data = part(real, slice(None, None, 2))
    found = fit_part(AtypicalityAwareRecalibration.paper(), data)
    assert found.loss_ <= paper_optimum(data["logits"], data["labels"], data["atypicality"]) + 1e-9


def test_paper_has_three_coefficients_and_a_score_per_class():
    found = fit(make_world(800, 4, atypical_noise=0.5), AtypicalityAwareRecalibration.paper())
    assert found.columns_ == ["1", "atypicality", "atypicality*atypicality"]
    assert found.coefficients_.shape == (3,)
    assert found.class_scores_.shape == (4,)
    assert found.class_scores_.mean() == pytest.approx(0, abs=1e-12)
    assert found.strength_ == {"multiplier": 0.0, "class_scores": 0.0}


def test_paper_probabilities_are_its_formula():
    world = make_world(500, 3, temperature=2.0, atypical_noise=0.5)
    found = fit(world, AtypicalityAwareRecalibration.paper())
    a = (world.atypicality - world.atypicality.mean()) / world.atypicality.std()
    phi = found.coefficients_ @ [np.ones_like(a), a, a**2]
    np.testing.assert_allclose(found.multiplier(world.atypicality), phi, rtol=1e-12)
    expected = softmax(phi[:, None] * log_softmax(world.logits, axis=1) + found.class_scores_, axis=1)
    np.testing.assert_allclose(predict(found, world), expected, atol=1e-12)


@pytest.mark.parametrize("real", ["cifar10-wrn28-10"], indirect=True)
def test_the_papers_rows_on_cifar10_come_out_within_their_spread(real):
    """ECE by quintile of atypicality, 4 halves; the paper's WideResNet28/CIFAR10 rows with Gaussian atypicality."""
    paper = {
        "uncalibrated": [0.003, 0.005, 0.004, 0.009],
        "temperature": [0.009, 0.007, 0.008, 0.004],
        "aware": [0.001, 0.002, 0.002, 0.002],
    }
    found = {name: [] for name in paper}
    for calibration, held_out in halves(real["labels"].size, 4):
        rows, test = part(real, calibration), part(real, held_out)
        found["uncalibrated"].append(by_quintile(softmax(test["logits"], axis=1), test))
        for name, method in (
            ("temperature", TemperatureScaling()),
            ("aware", AtypicalityAwareRecalibration.paper()),
        ):
            found[name].append(by_quintile(predict_part(fit_part(method, rows), test), test))
    means = {name: np.mean(values, axis=0) for name, values in found.items()}
    for name, row in paper.items():
        np.testing.assert_allclose(means[name][:4], row, atol=0.015, err_msg=name)
    assert means["aware"][4] <= 0.75 * means["temperature"][4]


@pytest.mark.parametrize(
    ("make", "correlation"),  # the default shares the work between scores and mixing
    [(AtypicalityAwareRecalibration.paper, 0.9), (AtypicalityAwareRecalibration, 0.85)],
)
@pytest.mark.parametrize("real", ["cifar10lt-wrn28-4"], indirect=True)
def test_on_a_long_tail_accuracy_rises_and_class_scores_follow_rarity(real, make, correlation):
    gains, correlations = [], []
    rarity = -np.log(real["counts"] / real["counts"].sum())
    for calibration, held_out in halves(real["labels"].size, 3):
        method, test = fit_part(make(), part(real, calibration)), part(real, held_out)
        before = (test["logits"].argmax(axis=1) == test["labels"]).mean()
        gains.append((predict_part(method, test).argmax(axis=1) == test["labels"]).mean() - before)
        correlations.append(np.corrcoef(method.class_scores_, rarity)[0, 1])
    assert np.mean(gains) >= 0.07
    assert np.mean(correlations) > correlation


# -- the default does no harm ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_rows", [5000, 1000])
def test_default_beats_temperature_and_paper_on_real_outputs(real, n_rows):
    methods = {"default": AtypicalityAwareRecalibration, "paper": AtypicalityAwareRecalibration.paper}
    losses = {name: [] for name in ("temperature", *methods)}
    worst = {name: [] for name in ("temperature", *methods)}
    for calibration, held_out in halves(real["labels"].size, 3):
        rows, test = part(real, calibration[:n_rows]), part(real, held_out)
        for name, make in {"temperature": TemperatureScaling, **methods}.items():
            probs = predict_part(fit_part(make(), rows), test)
            losses[name].append(nll(probs, test["labels"]))
            worst[name].append(by_quintile(probs, test).max())
    for other in ("temperature", "paper"):
        paired = np.subtract(losses["default"], losses[other])
        assert paired.mean() <= paired.std(ddof=1) / np.sqrt(paired.size), other
    assert np.mean(worst["default"]) < np.mean(worst["temperature"])


@pytest.mark.parametrize(("n_rows", "n_classes"), [(200, 4), (500, 10), (1000, 40)])
def test_default_keeps_to_temperature_scaling_where_that_is_the_truth(seed, n_rows, n_classes):
    # Temperature scaling recalibrates this world. An estimate of q parameters costs about q / (2 n) in mean loss: the
    # default may spend what four of its 2 k + 5 (and more) parameters would cost, and so must not learn the rest.
    world = make_world(n_rows + 20000, n_classes, temperature=2.0, random_state=seed)
    rows, test = world.take(slice(0, n_rows)), world.take(slice(n_rows, None))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # classes may be absent
        excess = nll(predict(fit(rows), test), test.labels) - nll(
            predict(fit(rows, TemperatureScaling()), test), test.labels
        )
    assert excess <= 4 / (2 * n_rows) + 4e-4  # second term: four standard errors of paired losses on the test rows


def test_default_is_no_worse_than_the_papers_form_where_that_is_the_truth(seed):
    world = make_world(24000, 5, temperature=2.0, class_imbalance=10.0, atypical_noise=0.9, random_state=seed)
    rows, test = world.take(slice(0, 4000)), world.take(slice(4000, None))
    temperature = nll(predict(fit(rows, TemperatureScaling()), test), test.labels)
    paper = nll(predict(fit(rows, AtypicalityAwareRecalibration.paper()), test), test.labels)
    default = nll(predict(fit(rows), test), test.labels)
    assert default < temperature - 0.005
    assert default < paper + 0.001


def test_class_densities_lower_the_loss_where_logits_are_noisy(rng):
    world = make_world(6000, 5, random_state=rng)
    noisy = world.logits + 2 * rng.standard_normal(world.logits.shape)
    d, half = densities(world), slice(0, 2000)
    common = {"atypicality": world.atypicality[half]}
    without = AtypicalityAwareRecalibration().fit(noisy[half], world.labels[half], **common)
    given = AtypicalityAwareRecalibration().fit(noisy[half], world.labels[half], class_log_density=d[half], **common)
    rest = slice(2000, None)
    a = world.atypicality[rest]
    informed = given.predict_proba(noisy[rest], atypicality=a, class_log_density=d[rest])
    blind = without.predict_proba(noisy[rest], atypicality=a)
    assert nll(informed, world.labels[rest]) < nll(blind, world.labels[rest]) - 0.02
    assert given.terms_["class_density"] == "used"
    assert without.terms_["class_density"] == "not given"


# -- far from the data -------------------------------------------------------------------------------------------------


def test_atypicality_beyond_the_calibration_range_changes_nothing():
    world = make_world(1000, 4, temperature=2.0, atypical_noise=0.9)
    found = fit(world)
    low, high = world.atypicality.min(), world.atypicality.max()
    for edge, beyond in ((low, low - 1e6), (high, high + 1e6), (high, np.nextafter(high, np.inf))):
        at_edge, far = (found.predict_proba(world.logits, atypicality=np.full(len(world), a)) for a in (edge, beyond))
        np.testing.assert_array_equal(at_edge, far)


@pytest.mark.parametrize(("n", "rank"), [(2000, 20), (1000, 10), (300, 10), (20, 5)])
def test_covariates_are_held_to_limits_that_several_rows_reach(n, rank):
    # one row in a hundred on either side, ten at least, and never more than a quarter
    world = make_world(n, 4, temperature=2.0, atypical_noise=0.9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = fit(world, strength=0.1)
    ordered = np.sort(world.atypicality)
    assert (found.polynomial_.low[0], found.polynomial_.high[0]) == (ordered[rank - 1], ordered[-rank])
    held = np.clip(world.atypicality, ordered[rank - 1], ordered[-rank])
    np.testing.assert_array_equal(predict(found, world), found.predict_proba(world.logits, atypicality=held))
    assert found.polynomial_.center[0] == pytest.approx(held.mean())
    assert found.polynomial_.scale[0] == pytest.approx(held.std())


def test_limits_of_covariates_count_weights_as_rows():
    world = make_world(400, 4, temperature=2.0)
    weight = np.random.default_rng(0).integers(0, 4, 400)
    found = AtypicalityAwareRecalibration(strength=0.1).fit(
        world.logits, world.labels, atypicality=world.atypicality, sample_weight=weight
    )
    repeated = np.sort(np.repeat(world.atypicality, weight))
    assert (found.polynomial_.low[0], found.polynomial_.high[0]) == (repeated[9], repeated[-10])


def heavy_tailed(n, seed):
    """A world whose rows of logits are multiplied by exp(N(0, 1)): some are dozens of times the others."""
    world = make_world(n, 5, temperature=2.0, random_state=seed)
    scale = np.exp(np.random.default_rng(seed).standard_normal((n, 1)))
    return dataclasses.replace(world, logits=world.logits * scale)


@pytest.mark.parametrize("n_rows", [300, 1000, 5000])
def test_logits_of_heavy_tailed_scale_get_no_extreme_multiplier_and_rule_no_label_out(seed, n_rows):
    world = heavy_tailed(n_rows + 5000, seed)
    rows, test = world.take(slice(0, n_rows)), world.take(slice(n_rows, None))
    found = fit(rows)
    multiplier = found.multiplier(test.atypicality, test.logits)
    assert multiplier.max() < 10 * np.median(multiplier)  # 236 times with limits at the single most extreme rows
    probs = found.predict_proba(test.logits.astype(np.float32), atypicality=test.atypicality)
    assert probs.astype(np.float64).min() >= found.floor_ > 0.01 / (n_rows * 5)
    assert nll(predict(found, test), test.labels) < nll(predict(fit(rows, TemperatureScaling()), test), test.labels)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_class_that_is_not_masked_falls_below_the_floor(dtype):
    world = make_world(600, 4, temperature=2.0)
    found = fit(world)
    far = (1e6 * world.logits).astype(dtype)
    far[::3, 1] = -np.inf
    probs = found.predict_proba(far, atypicality=world.atypicality)
    masked = np.isneginf(far)
    assert probs.dtype == dtype
    assert (probs[masked] == 0).all()
    floor = found.floor_
    assert probs[~masked].astype(np.float64).min() >= floor > 0.01 / (600 * 4)
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=4 * np.finfo(dtype).eps)
    found.floor_ = 0.0
    plain = found.predict_proba(far, atypicality=world.atypicality)
    assert plain[~masked].min() < 0.01 * floor
    # (1 - m d) p + d never changes which of two classes has more, but for rounding
    order = np.argsort(plain, axis=1)
    assert (np.diff(np.take_along_axis(probs, order, axis=1), axis=1) >= 0).all()


def test_the_paper_has_neither_limits_nor_floor():
    found = fit(heavy_tailed(1000, 0), AtypicalityAwareRecalibration.paper())
    assert found.floor_ == 0
    world = make_world(600, 4, temperature=2.0)
    probs = fit(world, AtypicalityAwareRecalibration.paper()).predict_proba(
        1e6 * world.logits, atypicality=world.atypicality
    )
    assert probs.min() == 0


def test_confidence_is_bounded_however_far_logits_and_densities_reach():
    world = make_world(1000, 4, temperature=2.0, atypical_noise=0.9)
    d = densities(world)
    data = {"atypicality": world.atypicality, "class_log_density": d}
    found = AtypicalityAwareRecalibration().fit(world.logits, world.labels, **data)
    far = [
        found.predict_proba(s * world.logits, atypicality=s * world.atypicality, class_log_density=s * d).max(axis=1)
        for s in (1e9, 1e12)
    ]
    np.testing.assert_allclose(far[0], far[1], rtol=1e-9)  # spread and covariates are at their limits in both
    assert (
        far[0].mean()
        <= TemperatureScaling().fit(world.logits, world.labels).predict_proba(1e9 * world.logits).max(axis=1).mean()
    )


def test_far_from_real_embeddings_confidence_is_at_most_that_of_temperature_scaling(real):
    """Embeddings pushed away from their mean, logits by the least-squares map: no more confident than temperature."""
    e, calibration = real["embeddings"], np.random.default_rng(0).permutation(real["labels"].size)[:2000]
    linear = np.linalg.lstsq(np.c_[e, np.ones(len(e))], real["logits"], rcond=None)[0]
    rows, density = part(real, calibration), real["density"]
    aware, plain = (fit_part(make(), rows) for make in (AtypicalityAwareRecalibration, TemperatureScaling))
    for scale in (10, 100):
        far = e.mean(axis=0) + scale * (e[::4] - e.mean(axis=0))
        logits = np.c_[far, np.ones(len(far))] @ linear
        given = {"atypicality": density.atypicality(far), "class_log_density": density.class_log_density(far)}
        confidence = aware.predict_proba(logits, **given).max(axis=1).mean()
        assert confidence <= plain.predict_proba(logits).max(axis=1).mean(), scale


# -- prior shift -------------------------------------------------------------------------------------------------------


def test_class_prior_multiplies_odds_by_the_ratio_of_shares():
    world = make_world(900, 3, class_imbalance=4.0)
    found = fit(world)
    found.floor_ = 0.0  # it is added to either
    before = predict(found, world)
    prior = np.array([0.2, 0.3, 0.5])
    shares = np.bincount(world.labels) / len(world)
    np.testing.assert_allclose(found.calibration_shares_, shares, rtol=1e-12)
    expected = before * prior / shares
    expected /= expected.sum(axis=1, keepdims=True)
    for given in (prior, dict(enumerate(prior.tolist()))):
        np.testing.assert_allclose(predict(found.set_params(class_prior=given), world), expected, rtol=1e-9)
    np.testing.assert_allclose(predict(found.set_params(class_prior=shares), world), before, rtol=1e-9)
    assert found.class_log_prior_ is None


def test_the_right_class_prior_lowers_the_loss_of_a_shifted_mix(seed):
    world = make_world(30000, 3, class_imbalance=20.0, random_state=seed)
    rows, rest = world.take(slice(0, 3000)), world.take(slice(3000, None))
    found = fit(rows)
    rng = np.random.default_rng(seed)
    chosen = np.concatenate([rng.choice(np.flatnonzero(rest.labels == y), 1000) for y in range(3)])  # balanced
    test = rest.take(chosen)
    unaware = nll(predict(found, test), test.labels)
    aware = nll(predict(found.set_params(class_prior=np.full(3, 1 / 3)), test), test.labels)
    assert aware < unaware - 0.01


def test_class_without_prior_gets_no_probability():
    world = make_world(300, 3)
    found = fit(world, class_prior=[0.5, 0.5, 0.0])
    assert (predict(found, world)[:, 2] == 0).all()


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        ([0.5, 0.5], r"class_prior must have one share per class, 3; got 2"),
        ([0.5, 0.6, 0.1], r"class_prior must hold shares.*sum 1\.2"),
        ([1.5, -0.5, 0.0], r"class_prior must hold shares.*smallest is -0\.5"),
        ({0: 0.5, 2: 0.5}, r"class_prior must name every class 0 \.\. 2 once"),
        ([np.nan, 0.5, 0.5], r"class_prior must be finite; row 0"),
    ],
)
def test_a_prior_that_is_no_distribution_over_the_classes_is_named(prior, message):
    with pytest.raises(ValueError, match=message):
        fit(make_world(100, 3), class_prior=prior)


# -- laws beside those of every recalibrator, in test_recalibrators.py ------------------------------------------------

FORMS = pytest.mark.parametrize("make", [AtypicalityAwareRecalibration.paper, AtypicalityAwareRecalibration], ids=str)


@FORMS
def test_units_of_atypicality_change_nothing(make):
    world = make_world(400, 3, temperature=2.0, atypical_noise=0.7)
    expected = predict(fit(world, make()), world)
    other = 1e3 * world.atypicality - 5e4
    found = make().fit(world.logits, world.labels, atypicality=other)
    np.testing.assert_allclose(found.predict_proba(world.logits, atypicality=other), expected, atol=2e-5)


@FORMS
def test_logits_near_the_end_of_float64s_range_change_nothing(make):
    world = make_world(400, 3, temperature=2.0, atypical_noise=0.7)
    found = make().fit(1e30 * world.logits, world.labels, atypicality=world.atypicality)
    probs = found.predict_proba(1e30 * world.logits, atypicality=world.atypicality)
    np.testing.assert_allclose(probs, predict(fit(world, make()), world), atol=2e-5)  # both within 1e-10 in loss


def test_a_weight_of_two_is_a_repeated_row_also_for_the_default(rng):
    world = make_world(300, 3, temperature=2.0, atypical_noise=0.7)
    weight = rng.integers(0, 3, 300)
    found = AtypicalityAwareRecalibration().fit(
        world.logits, world.labels, atypicality=world.atypicality, sample_weight=weight
    )
    repeated = world.take(np.repeat(np.arange(300), weight))
    np.testing.assert_allclose(predict(found, world), predict(fit(repeated), world), atol=2e-5)


def test_the_multiplier_is_refused_before_fit_and_the_class_has_the_largest_probability():
    world = make_world(300, 3)
    with pytest.raises(NotFittedError):
        AtypicalityAwareRecalibration().multiplier([1.0])
    found = fit(world)
    chosen = found.predict(world.logits, atypicality=world.atypicality)
    np.testing.assert_array_equal(chosen, predict(found, world).argmax(axis=1))


# -- hard input --------------------------------------------------------------------------------------------------------


@FORMS
class TestHardInput:
    def test_constant_atypicality_is_dropped_and_says_so(self, make):
        world = make_world(400, 3, temperature=2.0)
        names = tuple(name for name in make().covariates if name != "atypicality")
        with pytest.warns(UserWarning, match="atypicality is constant over the calibration rows"):
            found = make().fit(world.logits, world.labels, atypicality=np.full(400, 7.3))
        rest = make().set_params(covariates=names).fit(world.logits, world.labels)
        np.testing.assert_allclose(
            found.predict_proba(world.logits, atypicality=np.full(400, 9.0)),
            rest.predict_proba(world.logits),
            atol=1e-9,
        )
        assert not any("atypicality" in name for name in found.columns_)

    def test_absent_class_rests_on_the_ridge_or_the_mean(self, make):
        world = make_world(400, 4, temperature=2.0)
        rows = world.take(world.labels != 2)
        with pytest.warns(UserWarning, match="labels hold no row of class 2"):
            found = fit(rows, make())
        if found.strength == 0.0:
            assert found.class_scores_[2] == pytest.approx(0, abs=1e-12)
        else:  # 300 rows without it make it less probable
            assert found.class_scores_[2] < 0
        assert found.absent_classes_.tolist() == [2]
        assert np.isfinite(predict(found, world)).all()

    def test_fewer_rows_than_classes_leave_probabilities_finite(self, make):
        world = make_world(2000, 50, temperature=2.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = fit(world.take(slice(0, 30)), make())
        assert np.isfinite(predict(found, world)).all()

    def test_separable_rows_stay_finite(self, make, rng):
        logits, labels = 5 * np.eye(3)[np.arange(90) % 3] + rng.random((90, 3)), np.arange(90) % 3
        words = "labels all have the largest logit" if make().pseudo_rows else "separable"
        with pytest.warns(UserWarning, match=words):
            found = make().fit(logits, labels, atypicality=rng.random(90))
        probs = found.predict_proba(logits, atypicality=rng.random(90))
        assert np.isfinite(found.coefficients_).all()
        assert np.isfinite(probs).all()
        assert (probs.argmax(axis=1) == labels).all()

    def test_masked_classes_get_no_probability(self, make):
        world = make_world(400, 4, temperature=2.0)
        masked = world.logits.copy()
        hidden = (world.labels + 1) % 4
        masked[np.arange(400)[::2], hidden[::2]] = -np.inf
        found = make().fit(masked, world.labels, atypicality=world.atypicality)
        probs = found.predict_proba(masked, atypicality=world.atypicality)
        assert (probs[np.isneginf(masked)] == 0).all()
        np.testing.assert_allclose(probs.sum(axis=1), 1.0)
        alone = np.full((1, 4), -np.inf)
        alone[0, 3] = 1.5
        assert found.predict_proba(alone, atypicality=[1.0]).tolist() == [[0, 0, 0, 1]]

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"atypicality": None}, r"AtypicalityAwareRecalibration needs atypicality="),
            ({"atypicality": np.zeros(49)}, r"atypicality must have one entry per row; got 49 for 50 rows"),
            ({"atypicality": np.r_[np.nan, np.zeros(49)]}, r"atypicality must be finite; row 0"),
            ({"atypicality": np.zeros((50, 1))}, r"atypicality must be one-dimensional"),
        ],
    )
    def test_an_atypicality_that_does_not_fit_the_rows_is_named(self, make, change, message):
        world = make_world(50, 3)
        good = {"logits": world.logits, "labels": world.labels, "atypicality": world.atypicality}
        with pytest.raises(ValueError, match=message):
            make().fit(**{**good, **change})


def test_weights_that_are_no_numbers_of_rows_are_named():
    world = make_world(300, 3, temperature=2.0)
    with pytest.warns(UserWarning, match="sample_weight sums to 1 over 300 rows"):
        AtypicalityAwareRecalibration().fit(
            world.logits, world.labels, atypicality=world.atypicality, sample_weight=np.full(300, 1 / 300)
        )


def test_densities_of_fit_are_needed_in_predict_and_must_be_finite():
    world = make_world(200, 3)
    d = densities(world)
    found = AtypicalityAwareRecalibration(strength=0.1).fit(
        world.logits, world.labels, atypicality=world.atypicality, class_log_density=d
    )
    with pytest.raises(ValueError, match="needs class_log_density="):
        predict(found, world)
    d[3, 1] = np.nan
    with pytest.raises(ValueError, match="class_log_density must be finite; row 3"):
        found.predict_proba(world.logits, atypicality=world.atypicality, class_log_density=d)
    with pytest.raises(ValueError, match="needs class_log_density="):
        fit(world, class_density=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"covariates": ("atypicality", "entropy")}, "covariates must be one of"),
        ({"class_mixing": "low-rank"}, "class_mixing must be one of"),
        ({"class_density": "yes"}, "class_density must be one of"),
        ({"extrapolation": "linear"}, "extrapolation must be one of"),
        ({"strength": "cv"}, "strength must be one of 'auto'"),
        ({"strength": -1.0}, "strength must be a finite number"),
        ({"strength": {"multiplier": 1.0}}, "strength must name every group of parameters; missing are class_mixing"),
    ],
)
def test_an_option_that_is_not_known_is_named_with_those_that_are(options, message):
    with pytest.raises(ValueError, match=message):
        fit(make_world(50, 3), **options)


# -- what a fitted object tells ----------------------------------------------------------------------------------------


def test_multipliers_stay_in_their_range_and_need_what_they_are_made_of():
    world = make_world(1000, 3, temperature=2.0, atypical_noise=0.9)
    found = fit(world)
    grid = np.linspace(world.atypicality.min(), world.atypicality.max(), 7)
    assert found.multiplier(grid).shape == (7,)
    full = found.multiplier(world.atypicality, world.logits)
    assert full.min() >= found.multiplier_range_[0]
    assert full.max() <= found.multiplier_range_[1]
    assert fit(world, covariates=("margin",)).multiplier(logits=world.logits).shape == (1000,)
    with pytest.raises(ValueError, match="multiplier needs atypicality="):
        found.multiplier(logits=world.logits)


@pytest.mark.parametrize(
    ("n_classes", "shape", "words"),
    [
        (FULL_UP_TO, (FULL_UP_TO, FULL_UP_TO), "full"),
        (FULL_UP_TO + 1, (FULL_UP_TO + 1,), "diagonal: 25 classes are too many"),
        (DIAGONAL_UP_TO + 1, None, "dropped: 257 classes are too many"),
    ],
)
def test_mixing_follows_the_number_of_classes_and_says_so(n_classes, shape, words):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = fit(make_world(400, n_classes), strength=0.1)
    assert found.terms_["class_mixing"].startswith(words)
    assert (None if found.class_mixing_ is None else found.class_mixing_.shape) == shape


def test_without_any_term_it_is_temperature_scaling():
    world = make_world(500, 3, temperature=2.0)
    bare = fit(world, covariates=(), terms=(), class_scores=False, class_mixing=False)
    plain = fit(world, TemperatureScaling())
    mixed = (1 - 3 * bare.floor_) * predict(plain, world) + bare.floor_
    np.testing.assert_allclose(predict(bare, world), mixed, atol=2e-5)
    assert bare.strength_ == {}
    assert bare.terms_["class_scores"] == "off"


def test_a_stronger_ridge_gives_smaller_scores():
    world = make_world(500, 3, temperature=2.0, class_imbalance=5.0, atypical_noise=0.5)
    sizes = [np.abs(fit(world, strength=s).class_scores_).max() for s in (1e-4, 1e-1, 1e6)]
    assert sizes[0] > sizes[1] > sizes[2]
    assert sizes[2] < 1e-4
    groups = {"multiplier": 1.0, "class_scaling": 1.0, "class_mixing": 1.0, "class_scores": 1e-3}
    assert fit(world, strength=groups, terms=()).strength_ == groups
