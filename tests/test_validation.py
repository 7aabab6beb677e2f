"""Validation: every refusal names the argument, the rule, what came and what to do."""

import threading
import warnings
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse
from conftest import needs
from hypothesis import given
from hypothesis import strategies as st

import atypicality as aty
from atypicality import validation
from atypicality.arrays import like, returns_like_input, to_numpy

NAN_LATE = np.zeros((5000, 3))
NAN_LATE[[4321, 4999], 1] = np.nan, np.inf


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda v: v.check_matrix([1.0], "x"), ValueError, r"x must be two-dimensional.*\.reshape\(1, -1\)"),
        (lambda v: v.check_matrix(np.zeros((2, 2, 2)), "x"), ValueError, "Flatten each sample"),
        (lambda v: v.check_matrix(np.zeros((2, 0)), "x"), ValueError, "x must have at least one column"),
        (lambda v: v.check_matrix(np.zeros((2, 3)), "x", width=4), ValueError, "x must have 4 columns.*got 3"),
        (lambda v: v.check_matrix([[1, 2], [3]], "x"), ValueError, "x must be an array of numbers with rows of equal"),
        (lambda v: v.check_matrix(scipy.sparse.eye(3), "x"), TypeError, "x must be a dense array; got a sparse"),
        (lambda v: v.check_matrix(np.ma.ones((2, 2)), "x"), TypeError, "x must not be a masked array"),
        (lambda v: v.check_matrix([["a"]], "x"), TypeError, "x must hold real numbers; got dtype <U1"),
        (lambda v: v.check_finite(NAN_LATE, "x"), ValueError, "x must be finite; rows 4321, 4999 hold NaN"),
        (lambda v: v.check_logits(NAN_LATE), ValueError, "row.* 4321.*NaN, [+]inf or no finite entry"),
        (lambda v: v.check_logits([[-np.inf, -np.inf]]), ValueError, "row 0 holds NaN, .inf or no finite entry"),
        (lambda v: v.check_logits(np.zeros((1, 3)), n_classes=4), ValueError, "logits must have 4 columns"),
        (lambda v: v.check_probs([[0.5, 0.4]]), ValueError, "rows summing to 1; row 0 sums to 0.9"),
        (lambda v: v.check_probs([[1.5, -0.5]]), ValueError, "between 0 and 1; row 0 holds -0.5. Are these logits"),
        (lambda v: v.check_probs([[0.5, 0.5], [np.nan, 1]]), ValueError, "probs must be finite; row 1 holds NaN"),
        (lambda v: v.check_probs([[1.0]]), ValueError, "one column per class; got a single column"),
        (lambda v: v.check_labels([0.0, 1.0]), TypeError, "labels must be integer column indices; got dtype float64"),
        (lambda v: v.check_labels([True, False]), TypeError, "got dtype bool"),
        (lambda v: v.check_labels([[0, 1]]), ValueError, "Multi-label targets are not supported"),
        (lambda v: v.check_labels([[0], [1]]), ValueError, r"got shape \(2, 1\). Pass its column, labels\[:, 0\]"),
        (lambda v: v.check_labels([0, -1], n_classes=2), ValueError, r"lie in 0 \.\. 1.*row 1 is outside"),
        (lambda v: v.check_labels([0], n_rows=2), ValueError, "labels must have one entry per row; got 1 for 2 rows"),
        (lambda v: v.check_vector([np.inf], "a"), ValueError, "a must be finite; row 0 holds NaN or infinity"),
        (lambda v: v.check_vector([np.nan], "a", finite=False), ValueError, "a must be a number; row 0 holds NaN"),
        (lambda v: v.check_vector([[1.0]], "a"), ValueError, "a must be one-dimensional"),
        (lambda v: v.check_groups([0.5, 1.5]), TypeError, "groups must be integers, booleans or strings"),
        (
            lambda v: v.check_groups(np.array(["a", None, "b", np.nan], object)),
            TypeError,
            "groups must be text in every row; rows 1, 3 hold something else",
        ),
        (lambda v: v.check_sample_weight([-1.0, 1], 2), ValueError, "must not be negative; row 0 holds"),
        (lambda v: v.check_sample_weight([0.0, 0], 2), ValueError, "must not be all zero"),
        (lambda v: v.check_alpha(0), ValueError, "alpha must lie strictly between 0 and 1; got 0"),
        (lambda v: v.check_alpha(5), ValueError, "For 5 percent pass 0.05"),
        (lambda v: v.check_alpha("0.1"), TypeError, "alpha must be a number; got '0.1'"),
        (lambda v: v.check_alpha(np.nan), ValueError, "alpha must be a finite number"),
        (lambda v: v.check_integer(2.0, "k"), TypeError, "k must be a whole number; got 2.0"),
        (lambda v: v.check_integer(True, "k"), TypeError, "k must be a whole number; got True"),
        (lambda v: v.check_integer(0, "k", low=1), ValueError, "k must be at least 1; got 0"),
        (
            lambda v: v.check_choice("mean ", "how", ("mean", "min")),
            ValueError,
            "how must be one of 'mean', 'min'; got",
        ),
        (lambda v: v.check_choice(1, "flag", (True, False)), ValueError, "flag must be one of True, False; got 1"),
        (
            lambda v: v.require("no_such_package", extra="llm", feature="scoring prompts"),
            ModuleNotFoundError,
            r"scoring prompts needs no_such_package: pip install 'atypicality\[llm\]'",
        ),
    ],
)
def test_refusals(call, error, message):
    with pytest.raises(error, match=message):
        call(validation)


def test_large_finite_values_are_not_mistaken_for_infinity():
    validation.check_finite(np.full((10, 10), 3e38, np.float32), "x")
    validation.check_finite(np.full((10, 10), 1.7e308), "x")


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_matrices_stay_where_they_are(dtype):
    x = np.ones((3, 2), dtype)
    assert validation.check_matrix(x, "x") is x


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_a_numpy_matrix_is_the_array_it_holds(seed):
    plain = aty.datasets.make_world(600, 3, temperature=2.0, random_state=seed).outputs()
    rows, labels = plain.embeddings, plain.labels
    matrices = aty.ModelOutputs(np.matrix(plain.logits), embeddings=np.matrix(rows), labels=labels)
    assert type(matrices.logits) is type(matrices.embeddings) is np.ndarray
    head = aty.ReliabilityHead(recalibration=aty.TemperatureScaling(), prediction_sets=aty.SplitConformal())
    answers = [head.fit(train=given[:200], calibration=given[200:]).predict(given).proba for given in (plain, matrices)]
    np.testing.assert_array_equal(*answers)
    density = aty.GaussianAtypicality().fit(np.matrix(rows), labels)
    assert density.atypicality(np.matrix(rows)).shape == (600,)
    probs = validation.check_probs(np.matrix([[0.5, 0.5]]))
    assert type(probs) is np.ndarray
    assert aty.metrics.ece(np.matrix([[0.5, 0.5], [0.5, 0.5]]), [0, 1]) == 0
    with pytest.raises(ValueError, match=r"labels must be one-dimensional.*\(1, 600\)"):
        aty.ModelOutputs(plain.logits, labels=np.matrix(labels))


def test_other_real_types_become_float64():
    for dtype in ("i4", "u1", "?", "g", ">f4"):
        checked = validation.check_matrix(np.ones((2, 2), dtype), "x")
        assert checked.dtype in (np.float32, np.float64)
        assert checked.dtype.isnative


def test_masked_classes_are_legal_logits():
    np.testing.assert_array_equal(validation.check_logits([[-np.inf, 1.0]]), [[-np.inf, 1.0]])


@given(st.integers(1, 999), st.integers(0, 3))
def test_alpha_is_the_decimal_that_was_written(numerator, zeros):
    denominator = 1000 * 10**zeros
    assert validation.check_alpha(numerator / denominator) == Fraction(numerator, denominator)


@needs("torch")
def test_torch_tensors_share_memory_and_come_back():
    import torch

    tensor = torch.ones((2, 2), requires_grad=True)
    array = to_numpy(tensor, "x")
    assert array.__array_interface__["data"][0] == tensor.data_ptr()
    assert to_numpy(torch.ones(2, dtype=torch.bfloat16), "x").dtype == np.float32
    assert isinstance(like(np.zeros(3), tensor), torch.Tensor)

    class Doubler:
        @returns_like_input
        def double(self, values):
            return 2 * to_numpy(values, "values")

    assert isinstance(Doubler().double(torch.ones(2)), torch.Tensor)
    assert isinstance(Doubler().double(values=torch.ones(2)), torch.Tensor)
    assert isinstance(Doubler().double([1.0]), np.ndarray)


def test_warnings_point_at_the_callers_line():
    """However deep in the package a warning is born: here in the density, inside the head."""
    rng = np.random.default_rng(0)
    labels = np.arange(400) % 2
    embeddings = np.c_[rng.normal(size=(400, 2)) + 2 * np.eye(2)[labels], np.ones(400)]
    outputs = aty.ModelOutputs(rng.normal(size=(400, 2)) + np.eye(2)[labels], embeddings=embeddings, labels=labels)
    with pytest.warns(UserWarning, match="rank 2 of 3") as caught:
        head = aty.ReliabilityHead(recalibration=aty.TemperatureScaling()).fit(outputs[:200], outputs[200:])
    with pytest.warns(UserWarning, match="method 'head': nothing is accepted") as more:  # said by a context manager
        aty.evaluate({"head": head}, outputs[:200], max_risk=0.01)
    assert {warning.filename for warning in (*caught, *more)} == {__file__}


def test_probabilities_given_as_logits_are_noticed(rng):
    probs = rng.dirichlet(np.ones(3), size=50)
    labels = rng.integers(3, size=50)
    with pytest.warns(UserWarning, match="look like probabilities"):
        aty.VectorScaling(strength=1.0).fit(probs, labels)
    aty.VectorScaling(strength=1.0).fit(np.log(probs), labels)  # the remedy, without a warning


def test_numpy_strings_are_strings():
    assert validation.check_choice(np.str_("mean"), "how", ("mean", "min")) == "mean"


def test_collected_warnings_are_those_of_one_thread():
    """Two threads that enter and leave `warnings.catch_warnings` in turn would change each other's filters."""
    inside, done = threading.Event(), threading.Event()
    found = {}

    def collect():
        with validation.caught_warnings() as caught:
            validation.warn("mine")
            inside.set()
            done.wait(10)
        found["collected"] = caught

    thread = threading.Thread(target=collect)
    filters = list(warnings.filters)
    thread.start()
    inside.wait(10)
    with pytest.warns(UserWarning, match="theirs"):
        validation.warn("theirs")
    done.set()
    thread.join()
    assert found["collected"] == ["mine"]
    assert warnings.filters == filters
