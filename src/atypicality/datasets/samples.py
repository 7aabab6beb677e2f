"""Samples as the loaders give them: texts, and images that are read when they are asked for."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality.validation import check_integer, check_labels, check_number

__all__ = ["Images", "TextSamples", "long_tailed_rows", "split_rows"]


@dataclass(frozen=True)
class TextSamples:
    """Texts with their classes.

    Attributes
    ----------
    inputs : list of str, or of pairs of str
    labels : ndarray of shape (n,)
        Positions in `class_names`.
    class_names : tuple of str

    Examples
    --------
    >>> samples = TextSamples(["A fine film.", "Never again."], np.array([0, 1]), ("Positive", "Negative"))
    >>> samples.class_names[samples.labels[1]]
    'Negative'
    """

    inputs: list[Any]
    labels: NDArray[np.intp]
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True)
class Images:
    """Images with their classes; a map-style data set for any data loader: `images[i]` is (image, label).

    Attributes
    ----------
    sources : sequence
        Arrays (h, w, 3) of bytes, paths of image files, or whatever else holds one image each.
    labels : ndarray of shape (n,)
        Positions in `class_names`.
    class_names : tuple of str
    attributes : mapping of str to ndarray of shape (n,)
        Named columns that cut the samples into subgroups.
    transform : callable, optional
        Applied to the image, bytes (h, w, 3), when it is asked for.

    Examples
    --------
    >>> images = Images(np.zeros((2, 4, 4, 3), np.uint8), np.array([0, 1]), ("cat", "dog"))
    >>> images.take([1])[0][1]
    1
    """

    sources: Sequence[Any] | NDArray[np.uint8]
    labels: NDArray[np.intp]
    class_names: tuple[str, ...]
    attributes: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    transform: Callable[[Any], Any] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[Any, int]:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row must lie below {len(self)}; got {row}.")
        image = pixels(self.sources[row])
        return (image if self.transform is None else self.transform(image)), int(self.labels[row])

    def take(self, rows: ArrayLike) -> "Images":
        """Some of the images, in the order of `rows`."""
        chosen = np.asarray(rows)
        kept = _taken(self.sources, chosen)
        attributes = {name: values[chosen] for name, values in self.attributes.items()}
        return replace(self, sources=kept, labels=self.labels[chosen], attributes=attributes)

    def with_transform(self, transform: Callable[[Any], Any] | None) -> "Images":
        """The same images, put through `transform` when they are asked for."""
        return replace(self, transform=transform)


def _taken(sources: Any, rows: NDArray[Any]) -> Any:
    if isinstance(sources, np.ndarray):
        return sources[rows]
    positions = np.arange(len(sources))[rows].tolist()
    return sources.take(positions) if hasattr(sources, "take") else [sources[row] for row in positions]


def pixels(source: Any) -> NDArray[np.uint8]:
    """Bytes (h, w, 3) of an image: an array, the path of a file, or an image of Pillow's."""
    if isinstance(source, np.ndarray):
        return source
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("reading image files needs Pillow: pip install pillow", name="PIL") from error
    if hasattr(source, "convert"):
        return np.asarray(source.convert("RGB"))
    with Image.open(source) as image:
        return np.asarray(image.convert("RGB"))


def long_tailed_rows(labels: ArrayLike, *, imbalance: float = 100.0, random_state: int = 0) -> NDArray[np.intp]:
    r"""Rows of a long-tailed version of a balanced set, sorted.

    Of the k classes, class j keeps :math:`\lfloor n_{max}\, r^{-j/(k-1)} \rfloor` rows at random, r being `imbalance`
    and n_max the rows of the largest class (Cao, Wei, Gaidon, Arechiga and Ma 2019, as in MiSLAS).

    Parameters
    ----------
    labels : array-like of shape (n,)
    imbalance : float, default=100.0
    random_state : int, default=0

    Returns
    -------
    ndarray of shape (n_kept,)

    Examples
    --------
    >>> labels = np.repeat(np.arange(3), 100)
    >>> np.bincount(labels[long_tailed_rows(labels, imbalance=100)]).tolist()
    [100, 10, 1]
    """
    known = check_labels(labels)
    ratio = check_number(imbalance, "imbalance", low=1)
    rng = np.random.default_rng(check_integer(random_state, "random_state", low=0))
    counts = np.bincount(known)
    if counts.size < 2:
        raise ValueError(f"labels must hold at least two classes to be long-tailed; got {counts.size}.")
    kept = []
    for label, count in enumerate(counts):
        wanted = int(counts.max() * ratio ** (-label / (counts.size - 1)) + 1e-9)
        kept.append(rng.permutation(np.flatnonzero(known == label))[: min(wanted, count)])
    return np.sort(np.concatenate(kept))


def split_rows(n: int, shares: Sequence[float], *, random_state: int = 0) -> list[NDArray[np.intp]]:
    """Disjoint random parts of n rows, each sorted, with these shares of them.

    >>> [part.size for part in split_rows(10, (0.5, 0.25, 0.25))]
    [5, 3, 2]
    """
    if abs(sum(shares) - 1) > 1e-9 or min(shares) < 0:
        raise ValueError(f"shares must not be negative and sum to 1; got {tuple(shares)}.")
    order = np.random.default_rng(check_integer(random_state, "random_state", low=0)).permutation(n)
    ends = [int(n * share + 0.5) for share in itertools.accumulate(shares)]
    return [np.sort(part) for part in np.split(order, ends[:-1])]
