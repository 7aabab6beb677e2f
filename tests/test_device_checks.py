"""Checks of arrays on a device: same rules and words as on the host, and transfers that change nothing."""

import numpy as np
import pytest
from conftest import imported, needs

from atypicality.arrays import to_device, to_host
from atypicality.density.device_gaussian import refuse_embeddings
from atypicality.validation.device import device_matrix, refuse_rows


def test_floats_stay_and_integers_become_float64(library):
    for dtype, expected in (("float32", "float32"), ("float64", "float64"), ("int64", "float64")):
        values = library.asarray(np.ones((2, 3), dtype))
        found = device_matrix(values, "embeddings")
        assert to_host(found).dtype == expected
        assert (found is values) == (dtype == expected)


@needs("torch")
def test_half_precision_becomes_float32_and_gradients_are_left_behind(as_device):
    torch = imported("torch")
    for dtype in (torch.float16, torch.bfloat16):
        assert device_matrix(torch.ones((2, 3), dtype=dtype), "embeddings").dtype == torch.float32
    assert not device_matrix(torch.ones((2, 3), requires_grad=True), "embeddings").requires_grad


@pytest.mark.parametrize(
    ("shape", "dtype", "width", "error", "message"),
    [
        ((3,), "float64", None, ValueError, r"logits must be two-dimensional, one row per sample; got shape \(3,\)"),
        ((3, 0), "float64", None, ValueError, r"logits must have at least one column; got shape \(3, 0\)"),
        ((3, 2), "float64", 4, ValueError, "logits must have 4 columns, as many as when it was fitted; got 2"),
        ((3, 2), "complex128", None, TypeError, "logits must be real numbers; got dtype"),
    ],
)
def test_bad_matrices(library, shape, dtype, width, error, message):
    with pytest.raises(error, match=message):
        device_matrix(library.asarray(np.ones(shape, dtype)), "logits", width=width)


def test_bad_rows_are_named_from_the_first(library):
    refuse_rows(library.asarray(np.zeros(3, bool)), "logits")
    with pytest.raises(ValueError, match="logits must be finite; rows 11, 12 hold NaN or infinity"):
        refuse_rows(library.asarray(np.array([False, True, True])), "logits", first_row=10)
    with pytest.raises(ValueError, match="embeddings must be finite; row 7 holds NaN or infinity"):
        refuse_embeddings(library.asarray(np.array([[1.0, 2.0], [np.nan, 0.0]])), np.float32, 6)
    with pytest.raises(ValueError, match="squares that fit into float32; row 6 overflows"):
        refuse_embeddings(library.asarray(np.ones((2, 2))), np.float32, 6)


@pytest.mark.parametrize("shape", [(), (0, 3), (4,), (3, 5), (700, 900)])
@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "bool"])
def test_there_and_back_again(library, shape, dtype, rng):
    values = np.asarray(10 * rng.standard_normal(shape)).astype(dtype)
    values.flags.writeable = False
    there = to_device(values, library.asarray(np.zeros(1)))
    assert type(there) is type(library.asarray(np.zeros(1)))
    assert to_device(there, there) is there
    back = to_host(there)
    assert back.dtype == values.dtype
    np.testing.assert_array_equal(back, values)
    assert to_host(back) is back


@needs("torch")
def test_large_arrays_in_any_order_come_to_the_host(as_device, rng):
    torch = imported("torch")
    values = rng.standard_normal((1000, 900))
    back = to_host(torch.asarray(values).mT)
    np.testing.assert_array_equal(back, values.T)
    assert back.flags.c_contiguous
