"""Recalibration on a device: the CPU's optimum and probabilities, from logits that never leave it."""

import dataclasses

import numpy as np
import pytest
from bundle_cases import fitted
from conftest import imported
from recalibration_cases import CONVEX_CALIBRATORS, rows_like
from sklearn.base import clone

from atypicality import (
    AdaptiveTemperatureScaling,
    AtypicalityAwareRecalibration,
    ContentFreeCalibration,
    GroupTemperatureScaling,
    TemperatureScaling,
    VectorScaling,
    blocks,
    load,
)
from atypicality.arrays import to_host
from atypicality.recalibration import device_solver, passes, solver
from atypicality.recalibration.problem import Term
from atypicality.recalibration.solver import Problem, Ridge, solve

RECALIBRATORS = {
    **CONVEX_CALIBRATORS,
    "free diagonal": AtypicalityAwareRecalibration(class_mixing="diagonal", strength=0.0, class_density=False),
    "shrunk full": AtypicalityAwareRecalibration(class_mixing="full", strength=0.01),
    "prior": AtypicalityAwareRecalibration(strength=0.1, class_prior=[0.4, 0.3, 0.1, 0.1, 0.1, 0.0]),
    "no density": AtypicalityAwareRecalibration(class_density=False, extrapolation="none"),
}
TERMS = {
    "temperature": {},
    "paper": {"features": True, "class_scores": True},
    "diagonal": {"mixing": "diagonal"},
    "shrunk diagonal": {"mixing": "diagonal", "class_scores": True, "ridge": Ridge(mixing=0.02, scores=0.03)},
    "densities": {"features": True, "densities": True, "class_scores": True},
    "full": {"mixing": "full"},
    "all": {
        "features": True, "densities": True, "mixing": "full", "class_scores": True,
        "ridge": Ridge(0.1, {"class_density": 0.2}, 0.05, 0.01),
    },
}  # fmt: skip
pytestmark = pytest.mark.usefixtures("as_device")


@dataclasses.dataclass
class Rows:
    """Rows with masked classes, log-densities that say more than the logits, and weights."""

    logits: np.ndarray
    labels: np.ndarray
    columns: dict

    @classmethod
    def of(cls, n, k, seed, dtype=np.float64):
        rng = np.random.default_rng(seed)
        logits, labels, atypicality = rows_like(n, k, seed)
        hidden = rng.random((n, k)) < 0.05
        hidden[np.arange(n), labels] = False
        densities = logits + 3 * rng.normal(size=(n, k))
        densities[np.arange(n), labels] += 2
        logits = np.where(hidden, -np.inf, logits).astype(dtype)
        return cls(logits, labels, {"atypicality": atypicality, "class_log_density": densities.astype(dtype)})

    def on(self, put):
        return Rows(put(self.logits), put(self.labels), {name: put(values) for name, values in self.columns.items()})

    def fit(self, recalibrator, **options):
        return clone(recalibrator).fit(self.logits, self.labels, **self.columns, **options)

    def proba(self, fitted):
        return fitted.predict_proba(self.logits, **self.columns)


def same_array(result, template):
    return type(result) is type(template) and result.device == template.device


# ---------------------------------------------------------------- the whole family


@pytest.mark.parametrize("recalibrator", RECALIBRATORS.values(), ids=RECALIBRATORS)
def test_fits_and_probabilities_are_those_of_the_cpu(recalibrator, put, seed):
    # float64, the same steps from the same start: what differs is the rounding of sums
    rows, weight = Rows.of(300, 6, seed), np.random.default_rng(seed + 1).random(300) + 0.5
    host, device = (
        rows.fit(recalibrator, sample_weight=weight),
        rows.on(put).fit(recalibrator, sample_weight=put(weight)),
    )
    assert device.loss_ == pytest.approx(host.loss_, abs=1e-9)
    assert device.certificate_ <= 2e-10
    found, expected = rows.on(put).proba(device), rows.proba(host)
    assert same_array(found, put(rows.logits))
    assert found.dtype == put(rows.logits).dtype
    np.testing.assert_allclose(to_host(found), expected, atol=1e-9)
    np.testing.assert_array_equal(to_host(found)[np.isneginf(rows.logits)], 0)
    for name in ("coefficients_", "class_scores_", "class_mixing_", "scale_", "temperature_", "temperatures_"):
        if getattr(host, name, None) is not None:
            np.testing.assert_allclose(getattr(device, name), getattr(host, name), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["temperature", "grouped", "vector", "ensemble", "paper", "aware"])
def test_float32_stays_float32_and_agrees_to_its_rounding(name, put):
    # the CPU takes differences of logits in float32: 1e-7 of a logit of size 10, in the loss averaged over rows
    rows = Rows.of(300, 6, 3, np.float32)
    host, device = rows.fit(RECALIBRATORS[name]), rows.on(put).fit(RECALIBRATORS[name])
    assert device.loss_ == pytest.approx(host.loss_, abs=1e-7)
    found = rows.on(put).proba(device)
    assert str(found.dtype).endswith("float32")
    np.testing.assert_allclose(to_host(found), rows.proba(host), atol=1e-6)
    np.testing.assert_allclose(to_host(found).sum(axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_floor_holds_there_too(put, dtype):
    rows = Rows.of(300, 6, 3)
    fitted = rows.fit(AtypicalityAwareRecalibration(class_prior=[0.3, 0.3, 0.2, 0.1, 0.1, 0.0]))
    fitted.largest_spread_ *= 1e6  # as if it had seen such rows
    far = (1e6 * rows.logits).astype(dtype)
    found = to_host(fitted.predict_proba(put(far), **rows.columns))
    np.testing.assert_allclose(found, fitted.predict_proba(far, **rows.columns), atol=1e-7)
    masked = np.isneginf(far) | (np.arange(6) == 5)
    assert (found[masked] == 0).all()
    assert 1 <= found[~masked].astype(np.float64).min() / fitted.floor_ < 1.1  # some would be smaller


@pytest.mark.parametrize("recalibrator", RECALIBRATORS.values(), ids=RECALIBRATORS)
def test_what_was_fitted_on_one_side_predicts_on_the_other_and_lies_on_the_host(recalibrator, put):
    rows = Rows.of(200, 6, 1)
    host, device = rows.fit(recalibrator), rows.on(put).fit(recalibrator)

    def kinds(found):
        if dataclasses.is_dataclass(found):
            found = vars(found)
        return {name: kinds(value) for name, value in found.items()} if isinstance(found, dict) else type(found)

    assert kinds(vars(device)) == kinds(vars(host))
    assert vars(clone(device)).keys() == clone(host).get_params().keys()
    np.testing.assert_allclose(rows.proba(device), to_host(rows.on(put).proba(host)), atol=1e-9)
    labels = host.predict(put(rows.logits), **rows.columns)
    assert same_array(labels, put(rows.logits))
    np.testing.assert_array_equal(to_host(labels), device.predict(rows.logits, **rows.on(put).columns | {
        "class_log_density": rows.columns["class_log_density"]
    }))  # fmt: skip


def test_a_head_with_a_recalibrator_from_a_device_is_saved_and_loaded(put, tmp_path):
    rows = Rows.of(200, 4, 1)
    head = fitted(recalibration=AtypicalityAwareRecalibration.paper())
    head.recalibration_ = rows.on(put).fit(AtypicalityAwareRecalibration.paper())
    head.save(tmp_path / "head")
    found = load(tmp_path / "head").recalibration_
    np.testing.assert_array_equal(rows.proba(found), rows.proba(head.recalibration_))


@pytest.mark.parametrize("name", ["temperature", "grouped", "vector", "ensemble", "paper", "aware"])
def test_no_array_of_all_rows_by_all_classes_comes_to_the_host(name, monkeypatch):
    torch = imported("torch")
    rows, sizes = Rows.of(700, 20, 0).on(torch.asarray), []
    read = torch.Tensor.__array__
    monkeypatch.setattr(
        torch.Tensor, "__array__", lambda self, *a, **o: (sizes.append(self.numel()), read(self, *a, **o))[1]
    )
    fitted = rows.fit(RECALIBRATORS[name])
    rows.proba(fitted)
    fitted.predict(rows.logits, **rows.columns)
    terms = 1 + 1 + 3 + 1 + 1  # class density, rank, top with its two covariates, and two of similar classes
    hessian = (6 + terms + 20 * 20 + 20) ** 2  # of "aware": larger than n times k here, and the one matrix that is read
    assert sizes
    assert {size for size in sizes if size > 8 * 700} <= {hessian}  # eight numbers of every row


def test_groups_and_labels_may_lie_anywhere(put):
    rows, groups = Rows.of(200, 4, 0), np.arange(200) % 3
    host = GroupTemperatureScaling().fit(rows.logits, rows.labels, groups=groups)
    device = GroupTemperatureScaling().fit(put(rows.logits), rows.labels, groups=put(groups))
    np.testing.assert_allclose(device.temperatures_, host.temperatures_, rtol=1e-9)
    mixed = GroupTemperatureScaling().fit(rows.logits, put(rows.labels), groups=put(groups))
    np.testing.assert_array_equal(mixed.temperatures_, host.temperatures_)
    found = device.predict_proba(put(rows.logits), groups=groups)
    np.testing.assert_allclose(to_host(found), host.predict_proba(rows.logits, groups=groups), atol=1e-9)


def test_multipliers_read_margins_where_they_lie(put):
    rows = Rows.of(200, 4, 0)
    fitted = rows.fit(AtypicalityAwareRecalibration(strength=0.1))
    expected = fitted.multiplier(rows.columns["atypicality"], rows.logits)
    np.testing.assert_allclose(
        fitted.multiplier(put(rows.columns["atypicality"]), put(rows.logits)), expected, rtol=1e-12
    )


def test_beyond_the_calibration_rows_both_hold_to_their_limits(put):
    rows, far = Rows.of(300, 4, 0), Rows.of(50, 4, 1)
    far = Rows(100 * far.logits, far.labels, {name: 50 * values for name, values in far.columns.items()})
    fitted = rows.fit(AtypicalityAwareRecalibration(strength=0.1))
    np.testing.assert_allclose(to_host(far.on(put).proba(fitted)), far.proba(fitted), atol=1e-9)


def test_one_column_is_a_binary_model(put):
    rows = Rows.of(100, 2, 0)
    z = np.where(np.isneginf(rows.logits), 0, rows.logits)[:, 1:]
    host, device = TemperatureScaling().fit(z, rows.labels), TemperatureScaling().fit(put(z), rows.labels)
    assert device.temperature_ == pytest.approx(host.temperature_, rel=1e-12)
    assert tuple(device.predict_proba(put(z)).shape) == (100, 2)


def test_half_precision_and_gradients_are_taken_as_numbers():
    torch = imported("torch")
    rows = Rows.of(100, 4, 0, np.float32)
    z = torch.asarray(rows.logits).to(torch.bfloat16)
    expected = TemperatureScaling().fit(z.float().numpy(), rows.labels)
    found = TemperatureScaling().fit(z, rows.labels)
    assert found.temperature_ == pytest.approx(expected.temperature_, rel=1e-6)
    assert found.predict_proba(z).dtype == torch.float32
    learning = z.float().requires_grad_()
    assert not found.predict_proba(learning).requires_grad


# ---------------------------------------------------------------- passes and steps


def problems(terms, put, middle=1.0, n=60, k=4, seed=0):
    """The same problem on the host and on a device: masked classes, weights, and a class without labels."""
    rows, rng = Rows.of(n, k, seed), np.random.default_rng(seed + 7)
    labels = np.where(rows.labels == k - 1, 0, rows.labels)
    logits = np.where(np.isneginf(rows.logits) & (np.arange(k) == 0), 0.0, rows.logits)
    options = {**terms, "sample_weight": rng.random(n)}
    if options.pop("features", False):
        a = rows.columns["atypicality"]
        options["features"] = np.stack([np.ones_like(a), a, a**2], axis=1)
    wanted = options.pop("densities", False)
    matrix, options["middle"] = rows.columns["class_log_density"], middle
    here, there = ([Term("class_density", values)] if wanted else [] for values in (matrix, put(matrix)))
    return Problem(logits, labels, terms=here, **options), Problem(put(logits), labels, terms=there, **options)


@pytest.mark.parametrize("terms", TERMS.values(), ids=TERMS)
@pytest.mark.parametrize("middle", [1.0, 0.5])
def test_passes_are_those_of_the_cpu(terms, middle, put, monkeypatch):
    host, device = problems(terms, put, middle)
    rng = np.random.default_rng(3)
    theta, direction = (host.project(0.3 * rng.normal(size=host.n_parameters)) for _ in range(2))
    with blocks.settings(block_rows=17):
        for up_to in (0, 256):  # the Hessian stays on the device, or comes over with the gradient
            monkeypatch.setattr(device_solver, "HOST_UP_TO", up_to)
            one, other = (passes.evaluate(built, theta, "exact") for built in (host, device))
            assert other.objective == pytest.approx(one.objective, abs=1e-13)
            np.testing.assert_allclose(other.gradient, one.gradient, atol=1e-13)
            assert isinstance(other.curvature, np.ndarray) == bool(up_to)
            np.testing.assert_allclose(to_host(other.curvature), one.curvature, atol=1e-12)
        for function in (passes.row_losses, passes.row_gradients):
            np.testing.assert_allclose(to_host(function(device, theta)), function(host, theta), atol=1e-12)
        one, other = (passes.hessian_product(built, theta, direction) for built in (host, device))
    np.testing.assert_allclose(other, one, atol=1e-13)


@pytest.mark.parametrize("terms", TERMS.values(), ids=TERMS)
def test_the_approximate_hessian_is_that_of_the_cpu(terms, put):
    host, device = problems(terms, put)
    theta = host.project(0.3 * np.random.default_rng(3).normal(size=host.n_parameters))
    with blocks.settings(block_rows=17):
        one, other = (passes.evaluate(built, theta, "sparse").curvature for built in (host, device))
    for name in ("shared", "crossed", "moments", "outputs", "inputs"):
        if getattr(one, name) is not None:
            np.testing.assert_allclose(getattr(other, name), getattr(one, name), atol=1e-13)
    for first, second in zip(one.kept, other.kept, strict=True):
        np.testing.assert_array_equal(second.row, first.row)
        np.testing.assert_array_equal(second.column, first.column)
        np.testing.assert_allclose(second.values, first.values, atol=1e-13)


@pytest.mark.parametrize("terms", TERMS.values(), ids=TERMS)
@pytest.mark.parametrize("limits", [(0, 16384), (0, 0)], ids=["factored there", "approximate"])
def test_every_way_of_stepping_ends_at_the_same_optimum(terms, limits, put, monkeypatch):
    host, device = problems(terms, put, n=300, k=12)
    expected = solve(host)
    monkeypatch.setattr(device_solver, "HOST_UP_TO", limits[0])
    monkeypatch.setattr(device_solver, "EXACT_UP_TO", limits[1])
    found = solve(device)
    assert found.certificate <= 2e-10
    assert found.objective == pytest.approx(expected.objective, abs=4e-10)  # both within their certificates
    one, other = (np.exp(-solver.row_losses(host, solution)) for solution in (expected, found))
    # half of the mean squared change of the predictor is at most the certificates': 4e-10 = (2e-5)^2, on n rows
    np.testing.assert_allclose(one, other, atol=2e-5 * np.sqrt(2 * 300))


def test_a_hessian_without_full_rank_is_lifted(put, monkeypatch):
    monkeypatch.setattr(device_solver, "HOST_UP_TO", 0)
    rows = Rows.of(100, 3, 0)
    twice = np.ones((100, 2))
    found = solve(Problem(put(rows.logits), rows.labels, features=twice, class_scores=True))
    once = solve(Problem(rows.logits, rows.labels, class_scores=True))
    assert found.objective == pytest.approx(once.objective, abs=4e-10)
    assert found.coefficients.sum() == pytest.approx(once.coefficients[0], rel=1e-4)


def test_a_matrix_that_is_not_positive_definite_is_lifted_until_it_is(put):
    problem = Problem(put(Rows.of(20, 3, 0).logits), Rows.of(20, 3, 0).labels, features=np.ones((20, 2)))
    metric = device_solver.DeviceCholesky(problem, put([[1.0, 1.0001], [1.0001, 1.0]]), 1e-16)
    assert np.isfinite(metric.solve(np.array([1.0, -1.0]))).all()


def test_the_hessian_at_an_optimum_comes_to_the_host(put):
    host, device = problems(TERMS["paper"], put)
    found = solve(host)
    np.testing.assert_allclose(solver.hessian(device, found), solver.hessian(host, found), atol=1e-12)


# ---------------------------------------------------------------- hostile input


def changed(rows, row, value):
    logits = np.where(np.isneginf(rows.logits), 0.0, rows.logits)
    logits[row] = value
    return logits


@pytest.mark.parametrize("name", ["temperature", "vector", "paper", "aware"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_bad_rows_are_named(name, value, put):
    rows = Rows.of(60, 4, 0)
    message = r"logits must be finite, or -inf .*rows 5, 17 hold NaN, \+inf or no finite entry"
    bad = Rows(changed(rows, [5, 17], value), rows.labels, rows.columns)
    with pytest.raises(ValueError, match=message):
        bad.on(put).fit(RECALIBRATORS[name])
    with pytest.raises(ValueError, match=message):
        bad.on(put).proba(rows.fit(RECALIBRATORS[name]))


def test_logits_too_far_apart_for_a_softmax_are_named(put):
    rows = Rows.of(60, 4, 0)
    logits = rows.logits.astype(np.float64)
    logits[7, :2] = np.finfo(np.float64).min
    with np.errstate(all="ignore"), pytest.raises(ValueError, match=r"row 7 spreads further\. Mask a class"):
        rows.fit(VectorScaling()).predict_proba(put(logits))


def test_labels_are_checked(put):
    rows = Rows.of(60, 4, 0)
    with pytest.raises(ValueError, match=r"labels must lie in 0 .. 3, the columns; row 2 is outside \(row 2 is 4\)"):
        TemperatureScaling().fit(put(rows.logits), put(np.where(np.arange(60) == 2, 4, rows.labels)))
    with pytest.raises(TypeError, match="labels must be integer column indices"):
        TemperatureScaling().fit(put(rows.logits), put(rows.labels.astype(float)))
    with pytest.raises(ValueError, match="labels must have one entry per row; got 59 for 60 rows"):
        TemperatureScaling().fit(put(rows.logits), put(rows.labels[:-1]))
    logits = changed(rows, 0, 1.0)
    logits[8, rows.labels[8]] = -np.inf
    with pytest.raises(ValueError, match="labels must not point at a masked class; row 8 has"):
        TemperatureScaling().fit(put(logits), rows.labels)


def test_shapes_and_kinds_are_checked(put):
    rows = Rows.of(60, 4, 0)
    fitted = rows.fit(TemperatureScaling())
    with pytest.raises(ValueError, match="logits must have 4 columns, one per class as when it was fitted; got 3"):
        fitted.predict_proba(put(rows.logits[:, :3]))
    with pytest.raises(ValueError, match="logits must be two-dimensional"):
        fitted.predict(put(rows.logits[0]))
    with pytest.raises(ValueError, match="logits must have at least one row to fit"):
        TemperatureScaling().fit(put(rows.logits[:0]), put(rows.labels[:0]))
    with pytest.raises(TypeError, match="logits must be real numbers"):
        TemperatureScaling().fit(put(np.ones((60, 4), complex)), rows.labels)
    with pytest.raises(ValueError, match="logits must differ between classes"):
        TemperatureScaling().fit(put(np.ones((60, 4))), rows.labels)
    with pytest.raises(ValueError, match="logits must be of comparable size; row 3 spreads"):
        TemperatureScaling().fit(put(changed(rows, 3, [1e12, 0, 0, 0])), rows.labels)


def test_densities_are_checked(put):
    rows, aware = Rows.of(60, 4, 0), AtypicalityAwareRecalibration(strength=0.1)
    densities, fitted = rows.columns["class_log_density"], rows.fit(aware)
    bad = np.where(np.arange(60)[:, None] == 9, np.nan, densities)
    for values, message in (
        (densities[:, :3], "class_log_density must have 4 columns"),
        (densities[:-1], "class_log_density must have one entry per row; got 59 for 60 rows"),
        (bad, "must be finite; row 9 holds"),
    ):
        columns = {**rows.columns, "class_log_density": put(values)}
        with pytest.raises(ValueError, match=message):
            clone(aware).fit(put(rows.logits), rows.labels, **columns)
        with pytest.raises(ValueError, match=message):
            fitted.predict_proba(put(rows.logits), **columns)
    with pytest.raises(ValueError, match="needs class_log_density="):
        fitted.predict_proba(put(rows.logits), atypicality=rows.columns["atypicality"])
    with pytest.raises(ValueError, match="class_density must be finite; row 9 holds -inf"):
        Problem(
            put(rows.logits),
            rows.labels,
            terms=[Term("class_density", put(np.where(np.isnan(bad) & (np.arange(4) > 0), -np.inf, densities)))],
        )


def test_matrices_must_lie_together():
    torch, strict = imported("torch"), imported("array_api_strict")
    rows, aware = Rows.of(60, 4, 0), AtypicalityAwareRecalibration(strength=0.1)
    known, densities = strict.asarray(rows.logits), rows.columns["class_log_density"]
    for values in (torch.asarray(densities), strict.asarray(densities, device=strict.Device("device1"))):
        columns = {**rows.columns, "class_log_density": values}
        with pytest.raises(ValueError, match=r"class_log_density must be on the device of the logits, .*CPU.*Move one"):
            clone(aware).fit(known, rows.labels, **columns)
        with pytest.raises(TypeError, match=r"class_log_density is on an accelerator.*move it to the CPU"):
            clone(aware).fit(rows.logits, rows.labels, **columns)


def test_what_cannot_be_done_there_is_refused(put):
    rows = Rows.of(60, 4, 0)
    with pytest.raises(TypeError, match="content_free_logits is on an accelerator"):
        ContentFreeCalibration().fit(put(rows.logits))
    fitted = ContentFreeCalibration().fit(np.zeros((2, 4)))
    for method in (fitted.predict_proba, fitted.predict):
        with pytest.raises(TypeError, match="logits is on an accelerator, where this step cannot be done"):
            method(put(rows.logits))
    with pytest.raises(TypeError, match="logits is on an accelerator, where this step cannot be done"):
        AdaptiveTemperatureScaling().fit(put(rows.logits), rows.labels, embeddings=rows.logits)


def test_limits_of_the_temperature_warn_there_too(put):
    rows = Rows.of(60, 4, 0)
    right = 2 * np.eye(4)[rows.labels]
    for logits, message in ((right, "labels all have the largest logit"), (-right, "no better than chance")):
        with pytest.warns(UserWarning, match=message):
            found = TemperatureScaling().fit(put(logits), rows.labels)
        with pytest.warns(UserWarning, match=message):
            expected = TemperatureScaling().fit(logits, rows.labels)
        assert found.temperature_ == pytest.approx(expected.temperature_, rel=1e-9)


def test_absent_classes_warn_there_too(put):
    rows = Rows.of(60, 4, 0)
    labels = np.where(rows.labels == 3, 0, rows.labels)
    with pytest.warns(UserWarning, match="labels hold no row of class 3"):
        found = VectorScaling().fit(put(changed(rows, 0, [1.0, 2.0, 0.0, 0.5])), labels)
    assert found.class_scores_[3] == pytest.approx(0, abs=1e-15)
