"""What a model said: logits, embeddings and labels of the same rows, their files, and how to split them."""

import contextlib
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality import blocks
from atypicality.arrays import take_columns, take_rows, to_host, to_numpy
from atypicality.outputs.class_names import are_integers, check_class_names, class_order, encode_labels
from atypicality.outputs.files import write_arrays
from atypicality.outputs.reading import ATTRIBUTE, PER_CLASS, PER_ROW, FilePath, read_parts, warn_of_unnamed
from atypicality.outputs.table_index import check_column_order, check_same_index
from atypicality.terminal import html_table, listed
from atypicality.validation import (
    check_groups,
    check_integer,
    check_labels,
    check_number,
    check_rows,
    check_vector,
    is_missing,
    numbered,
)
from atypicality.validation.device import any_logits, any_matrix

__all__ = ["ModelOutputs", "Parts", "check_attributes", "check_outputs", "three_way_split"]

FINGERPRINT_ROWS = 4096
FINGERPRINT_BLOCK = 256


class ModelOutputs:
    """What a model said about n samples, and what is known of them; every part is optional but one.

    Parameters
    ----------
    logits : array of shape (n, k), optional
        Scores before the softmax; `-inf` masks a class. One column z of a binary model becomes [0, z]. Training
        outputs need none.
    embeddings : array of shape (n, d), optional
        What enters the model's last layer. Memory maps stay maps.
    labels : array of shape (n,), optional
        Integers are column indices of the logits, anything else (strings, codes) is looked up in `class_names`.
        Where the names are integers too and both readings are possible and differ, labels are refused: pass names as
        text.
    atypicality : array of shape (n,), optional
        Given instead of estimated, for example a prompt's negative log-likelihood.
    class_atypicality : array of shape (k,), optional
        Given instead of estimated.
    attributes : mapping of str to array of shape (n,), optional
        Named columns that cut the samples into subgroups, for analysis only; a DataFrame serves too. Missing numbers
        and texts are the subgroup "missing".
    class_names : sequence of k distinct names, optional
        The class of each column. Wherever two outputs, or outputs and a fitted head, both have names, these are
        compared: columns in another order are put in order, other names are refused. Without names on either side
        the columns are taken to be in the same order.
    ids : array of shape (n,), optional
        Names of the samples.

    Attributes
    ----------
    stratified : bool
        True for the parts of a stratified split: their rows are not exchangeable with new ones, so they may train a
        density or a recalibrator, and must not carry a coverage guarantee.

    Examples
    --------
    >>> outputs = ModelOutputs([[2.0, 0.0], [0.5, 1.5]], labels=["cat", "dog"], class_names=["cat", "dog"])
    >>> outputs
    ModelOutputs(2 rows, 2 classes; logits float64 (2, 2), labels)
    >>> outputs.labels
    array([0, 1])
    """

    def __init__(
        self,
        logits: ArrayLike | None = None,
        *,
        embeddings: ArrayLike | None = None,
        labels: ArrayLike | None = None,
        atypicality: ArrayLike | None = None,
        class_atypicality: ArrayLike | None = None,
        attributes: Mapping[str, ArrayLike] | None = None,
        class_names: ArrayLike | None = None,
        ids: ArrayLike | None = None,
    ) -> None:
        self.stratified = False
        self._number: Callable[[int], Any] | None = None
        self._called: str | None = None
        self._unnamed: Sequence[str] = ()
        given = {"logits": logits, "embeddings": embeddings, "labels": labels, "atypicality": atypicality}
        check_same_index(given | (dict(attributes) if isinstance(attributes, Mapping) else {"attributes": attributes}))
        self.logits = None if logits is None else any_logits(logits, scan=False)
        self.embeddings = None if embeddings is None else any_matrix(embeddings, "embeddings")
        self.class_names = None if class_names is None else check_class_names(class_names)
        check_column_order(logits, self.class_names)
        self.class_atypicality = (
            None if class_atypicality is None else check_vector(class_atypicality, "class_atypicality", finite=False)
        )
        self.labels = None if labels is None else encode_labels(labels, self.class_names)
        self.atypicality = None if atypicality is None else check_vector(atypicality, "atypicality")
        self.ids = None if ids is None else check_groups(ids, "ids")
        columns = check_attributes(attributes).items()
        self.attributes = {name: _check_attribute(values, name) for name, values in columns}
        self._check_lengths()

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; `class_names` are checked as those given at first."""
        if name == "class_names" and "attributes" in self.__dict__:
            value = None if value is None else check_class_names(value)
            self._replaced(class_names=value)._check_lengths()
        super().__setattr__(name, value)

    def _check_lengths(self) -> None:
        rows = self._per_row()
        if not rows:
            raise ValueError("ModelOutputs needs at least one of logits, embeddings, labels or atypicality.")
        first, n_rows = next((name, array.shape[0]) for name, array in rows.items())
        for name, array in rows.items():
            if array.shape[0] != n_rows:
                raise ValueError(f"{name} must have one entry per row; got {len(array)} where {first} has {n_rows}.")
        self._check_columns("class_names", "class names")
        self._check_columns("class_atypicality", "values")
        if self.labels is not None and self.n_classes is not None:
            check_labels(self.labels, n_classes=self.n_classes)

    def _check_columns(self, name: str, what: str) -> None:
        """One entry for each column of the logits."""
        found, logits, other = getattr(self, name), self.logits, self.embeddings
        if found is None or logits is None or found.size == logits.shape[1]:
            return
        fits = other is not None and other.shape[1] == found.size
        raise ValueError(
            f"{name} must be one for each column of the logits; got {found.size} {what} for {logits.shape[1]} columns "
            "of logits."
            + (f" The embeddings have {found.size} columns: are logits and embeddings swapped?" if fits else "")
        )

    def _per_row(self) -> dict[str, NDArray[Any]]:
        named = {name: getattr(self, name) for name in PER_ROW} | {
            ATTRIBUTE + name: values for name, values in self.attributes.items()
        }
        return {name: array for name, array in named.items() if array is not None}

    @property
    def n_classes(self) -> int | None:
        """Number of columns, from the logits or, without them, from what is given per class."""
        if self.logits is not None:
            return int(self.logits.shape[1])
        known = [len(part) for part in (self.class_names, self.class_atypicality) if part is not None]
        return known[0] if known else None

    def __len__(self) -> int:
        return int(next(iter(self._per_row().values())).shape[0])

    def __getitem__(self, rows: slice | NDArray[Any]) -> "ModelOutputs":
        """The outputs of some rows: a slice, positions or a boolean mask."""
        rows = check_rows(rows)
        parts = {name: take_rows(array, rows) for name in PER_ROW if (array := getattr(self, name)) is not None}
        attributes = {name: blocks.take_rows(values, rows) for name, values in self.attributes.items()}
        return self._replaced(**parts, attributes=attributes, _number=None)

    def _part(self, rows: slice | NDArray[Any]) -> "ModelOutputs":
        """Some rows as `[rows]` gives them, that remember their places: errors name the rows of the whole."""
        start = rows.start or 0 if isinstance(rows, slice) else 0
        places = None if isinstance(rows, slice) else np.flatnonzero(rows) if rows.dtype == bool else rows
        whole = self._number or int
        return self[rows]._replaced(_number=lambda row: whole(row + start if places is None else int(places[row])))

    def _numbered(self) -> contextlib.AbstractContextManager[None]:
        """Inside, errors about rows of these outputs name the rows that the user gave, and classes by their names."""
        return numbered(self._number, self.class_names)

    def _as(self, name: str) -> "ModelOutputs":
        """The same, called so in errors about what is missing, unless they have a name already."""
        return self._replaced(_called=self._called or name)

    def _replaced(self, **parts: Any) -> "ModelOutputs":
        """The same with other `parts`, which are checked already: labels are column indices."""
        copy = object.__new__(ModelOutputs)
        copy.__dict__.update(self.__dict__ | parts)
        return copy

    def with_classes(self, class_names: ArrayLike | None, *, whose: str = "those given") -> "ModelOutputs":
        """The same with classes in the order of `class_names`: logits, labels and class atypicality move together.

        Names that are not the same on both sides are refused, and the error says `whose` names were expected. Without
        names on either side nothing can be compared, and the outputs are returned as they are.

        >>> outputs = ModelOutputs([[2.0, 0.0]], labels=["cat"], class_names=["cat", "dog"])
        >>> turned = outputs.with_classes(["dog", "cat"])
        >>> turned.logits, turned.labels
        (array([[0., 2.]]), array([1]))
        """
        names = None if class_names is None else check_class_names(class_names)
        return self._in_order(class_order(self.class_names, names, whose))

    def _in_order(self, order: NDArray[np.intp] | None) -> "ModelOutputs":
        """The same with classes at these columns, a permutation; None leaves them as they are."""
        if order is None:
            return self
        parts: dict[str, Any] = {"class_names": None if self.class_names is None else self.class_names[order]}
        if self.logits is not None:
            parts["logits"] = take_columns(self.logits, order)
        if self.labels is not None:
            parts["labels"] = np.argsort(order)[self.labels]
        if self.class_atypicality is not None:
            parts["class_atypicality"] = self.class_atypicality[order]
        return self._replaced(**parts)

    def _repr_html_(self) -> str:
        """For a notebook: every part with its type and shape."""
        parts = {name: getattr(self, name) for name in PER_ROW + PER_CLASS} | dict(self.attributes)
        rows = [(name, _type(part), tuple(part.shape)) for name, part in parts.items() if part is not None]
        classes = "" if self.n_classes is None else f", {self.n_classes} classes"
        return html_table(f"ModelOutputs: {len(self):,} rows{classes}", ("part", "type", "shape"), rows)

    def __repr__(self) -> str:
        matrices = [
            f"{name} {_type(array)} {tuple(array.shape)}"
            for name in ("logits", "embeddings")
            if (array := getattr(self, name)) is not None
        ]
        known = ("labels", "atypicality", "class_atypicality", "ids")
        others = [name for name in known if getattr(self, name) is not None]
        attributes = [f"attributes {listed(self.attributes)}"] if self.attributes else []
        classes = "" if self.n_classes is None else f", {self.n_classes} classes"
        return f"ModelOutputs({len(self)} rows{classes}; {', '.join(matrices + others + attributes)})"

    def need(self, *names: str) -> Any:
        """The parts with these `names`, or an error that says which are missing and which are there."""
        missing = [name for name in names if getattr(self, name) is None]
        if missing:
            have = [name for name in PER_ROW + PER_CLASS if getattr(self, name) is not None]
            whose = self._called or "the outputs"
            told = f"{whose} must have {', '.join(missing)}; they have only {', '.join(have)}."
            also = f" The file also has {listed(self._unnamed)}: say which is which with --names."
            raise ValueError(told + (also if self._unnamed else ""))
        found = tuple(getattr(self, name) for name in names)
        return found[0] if len(found) == 1 else found

    def split(
        self, fraction: float, random_state: int = 0, *, stratify: bool = False
    ) -> tuple["ModelOutputs", "ModelOutputs"]:
        """Two disjoint random parts, the first with `fraction` of the rows (rounded); rows keep their order.

        `stratify=True` keeps the class shares and is for parts that train something. A part that carries a coverage
        guarantee must be drawn plainly: stratifying rare classes makes calibration rows unlike new ones. `random_state`
        is an int.

        >>> outputs = ModelOutputs(np.zeros((10, 2)))
        >>> [len(part) for part in outputs.split(0.3)]
        [3, 7]
        """
        chosen = self._chosen(fraction, random_state, stratify=stratify)
        parts = self[chosen], self[~chosen]
        for part in parts:
            part.stratified = self.stratified or stratify
        return parts

    def _chosen(self, fraction: float, random_state: int = 0, *, stratify: bool = False) -> NDArray[np.bool_]:
        """The mask (n,) of the rows that `split` puts into its first part.

        >>> int(ModelOutputs(np.zeros((10, 2)))._chosen(0.3).sum())
        3
        """
        fraction = check_number(fraction, "fraction", low=0, high=1, low_open=True, high_open=True)
        rng = np.random.default_rng(check_integer(random_state, "random_state", low=0))
        mask = (
            _stratified_mask(self.need("labels"), fraction, rng) if stratify else _random_mask(len(self), fraction, rng)
        )
        if mask.all() or not mask.any():
            raise ValueError(f"fraction must leave rows on both sides; {fraction:g} of {len(self)} rows does not.")
        return mask

    def fingerprint(self) -> str:
        """A short hash of the contents, to notice that two uses meant the same data; long arrays are sampled."""
        digest = hashlib.sha256()
        for name, array in sorted(self._per_row().items()):
            sample = array[:: max(1, array.shape[0] // FINGERPRINT_ROWS), ...]
            dtype = to_host(sample[:1, ...]).dtype
            digest.update(f"{name} {dtype.str} {tuple(array.shape)}".encode())
            for rows in blocks.row_slices(sample.shape[0], FINGERPRINT_BLOCK):
                digest.update(np.ascontiguousarray(to_host(sample[rows, ...])).tobytes())
        return digest.hexdigest()[:16]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to `path`: .npz, .safetensors or .parquet, or, without an ending, a new folder of .npy files."""
        arrays = self._per_row() | {name: part for name in PER_CLASS if (part := getattr(self, name)) is not None}
        if self.labels is not None and self.class_names is not None and are_integers(self.class_names):
            arrays["labels"] = self.class_names[self.labels]  # as column indices they could be read as names
        write_arrays(path, {name: to_host(array) for name, array in arrays.items()})

    @classmethod
    def load(
        cls,
        path: FilePath | Sequence[FilePath],
        *,
        names: Mapping[str, str] | None = None,
        class_names: ArrayLike | None = None,
        max_bytes: int | None = None,
    ) -> Self:
        """Read outputs; a .npy file, or a folder of them, is mapped, not read.

        Parameters
        ----------
        path : path, or sequence of paths
            Of .npz, .npy, .safetensors, .parquet, .csv or .tsv files, or folders of .npy or of .parquet files. Arrays
            of several files are put together. A .npy file holds one array, named as the file; of a table each column
            is an array, and numeric columns `logits_0`, `logits_1`, ... are one matrix.
        names : mapping, optional
            Our name to the file's name, where they differ: `{"logits": "scores"}`. A star stands for what changes in
            the name of an array, as `{"embeddings": "*_emb"}` for `monday_emb.npy`.
        class_names : sequence of k distinct names, optional
            In the order of the columns of the logits, where no file has them: labels that are text are looked up there.
        max_bytes : int, optional
            Most bytes that a file may unpack to, 16 GiB by default; under a memory limit, where large arrays go
            to the disk, or four times its own size if that is more. A .npy file has no limit.

        Examples
        --------
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     logits, labels = os.path.join(folder, "scores.npy"), os.path.join(folder, "truth.csv")
        ...     np.save(logits, [[2.0, 0.0], [0.5, 1.5]])
        ...     with open(labels, "w") as stream:
        ...         print(*["label", "cat", "dog"], sep=os.linesep, file=stream)
        ...     names = {"logits": "scores", "labels": "label"}
        ...     ModelOutputs.load([logits, labels], names=names, class_names=["cat", "dog"])
        ModelOutputs(2 rows, 2 classes; logits float64 (2, 2), labels)
        """
        limit = None if max_bytes is None else check_integer(max_bytes, "max_bytes", low=1)
        paths = [path] if isinstance(path, (str, os.PathLike)) else list(path)
        found = read_parts(paths, dict(names or {}), class_names, limit)
        warn_of_unnamed(found.unnamed, paths)
        return cls(**found.parts)


class Parts(NamedTuple):
    """Three disjoint parts of one labelled set, each used for one thing."""

    recalibration: ModelOutputs
    edges: ModelOutputs
    thresholds: ModelOutputs


def three_way_split(
    outputs: ModelOutputs, *, recalibration: float = 0.5, edges: float = 1 / 6, random_state: int = 0
) -> Parts:
    """Cut one labelled set into the parts that recalibrate, choose group edges, and carry the guarantee.

    Plain random: rows that chose a temperature, an edge or a penalty never set a threshold, and no class is favoured.

    Parameters
    ----------
    outputs : ModelOutputs
    recalibration, edges : float in (0, 1), default=0.5 and 1/6
        Shares of the rows; what they leave carries the guarantee.
    random_state : int, default=0

    Returns
    -------
    Parts
        `recalibration`, `edges` and `thresholds`, each a ModelOutputs.

    Examples
    --------
    >>> [len(part) for part in three_way_split(ModelOutputs(np.zeros((600, 2))))]
    [300, 100, 200]
    """
    recalibration = check_number(recalibration, "recalibration", low=0, high=1, low_open=True, high_open=True)
    edges = check_number(edges, "edges", low=0, high=1, low_open=True, high_open=True)
    if recalibration + edges >= 1:
        raise ValueError(
            f"recalibration + edges must be below 1, to leave rows for the thresholds; got {recalibration + edges:g}."
        )
    if outputs.stratified:
        raise ValueError("outputs are of a stratified split and cannot carry a guarantee; split with stratify=False.")
    first, rest = outputs.split(recalibration, random_state)
    second, third = rest.split(edges / (1 - recalibration), random_state)
    return Parts(first, second, third)


def check_outputs(outputs: Any, name: str = "outputs") -> ModelOutputs:
    """Refuse bare arrays, tables and swapped arguments where a `ModelOutputs` is asked for."""
    if not isinstance(outputs, ModelOutputs):
        tensor = type(outputs).__module__.partition(".")[0] == "torch"
        made = "collect(model, [batch])" if tensor else "outputs(X, y) of an AtypicalityAwareClassifier"
        raise TypeError(
            f"{name} must be ModelOutputs; got {type(outputs).__name__}. Pass ModelOutputs(logits, embeddings=...), or "
            f"what {made} returns."
        )
    return outputs


def _random_mask(n_rows: int, fraction: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    mask = np.zeros(n_rows, bool)
    mask[rng.permutation(n_rows)[: round(fraction * n_rows)]] = True
    return mask


def _stratified_mask(labels: NDArray[np.intp], fraction: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Random rows with every class's share kept to within one row: cut each class's shuffled rows at equal steps."""
    order = rng.permutation(labels.size)
    order = order[np.argsort(labels[order], kind="stable")]
    position = np.floor(np.arange(1, labels.size + 1) * fraction + 1e-9)
    mask = np.zeros(labels.size, bool)
    mask[order[np.diff(position, prepend=0.0) > 0]] = True
    return mask


def check_attributes(attributes: Any) -> Any:
    """A mapping of names to columns, or a DataFrame; an empty mapping for None."""
    if attributes is None:
        return {}
    if not isinstance(attributes, Mapping) and not (hasattr(attributes, "columns") and hasattr(attributes, "items")):
        raise TypeError(
            f"attributes must be a mapping of names to columns, or a DataFrame; got {type(attributes).__name__}."
        )
    return attributes


def _check_attribute(values: ArrayLike, name: str) -> NDArray[Any]:
    array = to_numpy(values, f"attributes[{name!r}]")
    if array.dtype.kind == "f" and array.ndim == 1:
        return array
    if array.dtype.kind == "O" or (array.dtype.kind == "U" and not isinstance(values, np.ndarray)):
        values = _with_gaps_named(np.array(values, object))
    return check_groups(values, f"attributes[{name!r}]")


def _with_gaps_named(values: NDArray[np.object_]) -> NDArray[np.object_]:
    """Values of which some are text, with "missing" where there is none; others as they are."""
    gaps = [is_missing(value) for value in values.ravel()]
    if any(gaps) and any(isinstance(value, str) for value in values.ravel()):
        values.ravel()[gaps] = "missing"
    return values


def _type(array: Any) -> str:
    """The type of an array of any library, by its name alone."""
    return str(array.dtype).rpartition(".")[2]
