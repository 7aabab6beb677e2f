"""The bundled outputs are what their page says."""

from importlib.resources import files

import numpy as np
import pytest

from atypicality.datasets import load_fashion_mnist, load_fashion_mnist_lt


@pytest.mark.parametrize(("load", "accuracy"), [(load_fashion_mnist, 0.929), (load_fashion_mnist_lt, 0.862)])
def test_parts_and_accuracy(load, accuracy):
    splits = load()
    assert [len(part) for part in splits] == [10_000, 5_000, 5_000]
    assert splits.train.logits is None
    logits, labels = splits.test.need("logits", "labels")
    assert round((logits.argmax(axis=1) == labels).mean(), 3) == accuracy  # the number on the page beside the files
    assert set(np.unique(splits.test.attributes["brightness"])) == {0, 1, 2, 3}
    assert splits.calibration.class_names[0] == "T-shirt"


def test_long_tail_is_long():
    counts = np.bincount(load_fashion_mnist_lt().train.labels)
    assert (np.diff(counts) < 0).all()
    assert counts[0] > 50 * counts[-1]


def test_data_fits_in_the_wheel():
    folder = files("atypicality.datasets") / "data"
    size = sum(file.stat().st_size for part in folder.iterdir() if part.is_dir() for file in part.iterdir())
    assert size < 8e6
