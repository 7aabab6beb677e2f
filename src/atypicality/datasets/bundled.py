"""Real outputs that ship with the package: a small network on Fashion-MNIST, and on a long-tailed version of it."""

from importlib.resources import as_file, files
from typing import NamedTuple

from atypicality.outputs import ModelOutputs

__all__ = ["Splits", "load_fashion_mnist", "load_fashion_mnist_lt"]


class Splits(NamedTuple):
    """Outputs on rows the model was trained on, and on two disjoint random halves of rows it never saw.

    Attributes
    ----------
    train, calibration, test : ModelOutputs

    Examples
    --------
    >>> train, calibration, test = load_fashion_mnist()
    >>> len(train), len(calibration), len(test)
    (10000, 5000, 5000)
    """

    train: ModelOutputs
    calibration: ModelOutputs
    test: ModelOutputs


def load_fashion_mnist() -> Splits:
    """Outputs of a small convolutional network trained on Fashion-MNIST (10 classes, 48-dimensional embeddings).

    `train` holds embeddings and labels of 10,000 training rows; `calibration` and `test` hold logits, embeddings,
    labels and the attribute `brightness` of 5,000 rows each. Provenance and licence lie beside the files.

    Returns
    -------
    Splits

    Examples
    --------
    >>> load_fashion_mnist().test
    ModelOutputs(5000 rows, 10 classes; logits float32 (5000, 10), embeddings float16 (5000, 48), labels, ...)
    """
    return _load("fashion-mnist")


def load_fashion_mnist_lt() -> Splits:
    """The same network trained on a long-tailed version: 6,000 images of the first class, 60 of the last.

    Calibration and test rows are balanced, as in the long-tailed settings of the paper.

    Returns
    -------
    Splits

    Examples
    --------
    >>> train = load_fashion_mnist_lt().train
    >>> int((train.labels == 0).sum()) > 50 * int((train.labels == 9).sum())
    True
    """
    return _load("fashion-mnist-lt")


def _load(name: str) -> Splits:
    with as_file(files("atypicality.datasets") / "data" / name) as folder:
        train, calibration, test = (ModelOutputs.load(folder / f"{part}.npz") for part in Splits._fields)
        return Splits(train, calibration, test)
