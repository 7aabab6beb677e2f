"""The one place where bad input is found and named: which argument, which rule, what came, what to do."""

import contextlib
import importlib
import math
import operator
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from fractions import Fraction
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality import blocks
from atypicality.arrays import to_numpy

__all__ = [
    "caught_warnings", "check_alpha", "check_choice", "check_confidence", "check_embeddings", "check_finite",
    "check_groups", "check_integer", "check_labels", "check_length", "check_logits", "check_matrix",
    "check_matrix_shape", "check_names", "check_normalisers", "check_number", "check_probs", "check_rows",
    "check_sample_weight", "check_vector", "common_sum", "first_of", "is_missing", "look_like_probabilities",
    "name_classes", "name_rows", "numbered", "own_row", "require", "warn", "warn_of_probabilities",
]  # fmt: skip

FloatArray = NDArray[np.floating[Any]]
Doubles = NDArray[np.float64]
PROBED = 256
_number: ContextVar[Callable[[int], Any] | None] = ContextVar("atypicality_number", default=None)
_class_names: ContextVar[NDArray[Any] | None] = ContextVar("atypicality_class_names", default=None)
ODD_TEXT = re.compile("[\0\ud800-\udfff]")
ONE_HOT = "Multi-label targets are not supported; for one-hot rows pass .argmax(axis=1)."


def check_matrix(values: Any, name: str, *, width: int | None = None) -> FloatArray:
    """A real matrix as it lies in memory (a memory map stays one); float16, float32 and float64 are kept.

    Integers become float64 and long doubles too. Finiteness is not checked here: see `check_finite`.
    """
    array = _real(to_numpy(values, name), name)
    check_matrix_shape(array.shape, name, width=width)
    return array


def check_matrix_shape(shape: tuple[int, ...], name: str, *, width: int | None = None) -> None:
    """Refuse what is no matrix, has no columns, or has other columns than before."""
    if len(shape) != 2:
        raise ValueError(
            f"{name} must be two-dimensional, one row per sample; got shape {shape}. "
            + ("Use .reshape(1, -1) for one sample." if len(shape) == 1 else "Flatten each sample to one row.")
        )
    if shape[1] == 0:
        raise ValueError(f"{name} must have at least one column; got shape {shape}.")
    if width is not None and shape[1] != width:
        raise ValueError(
            f"{name} must have {width} columns, as many as when it was fitted; got {shape[1]}. "
            "Pass the output of the same model and layer."
        )


def check_embeddings(values: Any, name: str = "embeddings", *, width: int | None = None) -> FloatArray:
    """Like `check_matrix`; rows are then checked with `check_finite`, block by block, where they are read."""
    return check_matrix(values, name, width=width)


def check_finite(block: FloatArray, name: str, *, first_row: int = 0) -> None:
    """Refuse NaN and infinity in a block of rows, naming the rows counted from the start of the whole array."""
    flat = block.reshape(block.shape[0], -1)
    with np.errstate(invalid="ignore", over="ignore"):
        # NaN and infinity survive a sum, which BLAS takes at the speed of memory; an overflow only costs a second look
        sums = flat.sum(dtype=np.float32) if flat.dtype == np.float16 else flat @ np.ones(flat.shape[1], flat.dtype)
    if np.isfinite(sums).all():
        return
    bad = np.flatnonzero(~np.isfinite(flat).all(axis=1))
    if bad.size:
        rows = name_rows(bad + first_row, of=name)
        raise ValueError(f"{name} must be finite; {rows} NaN or infinity. Drop or repair them.")


def check_logits(values: Any, name: str = "logits", *, n_classes: int | None = None, scan: bool = True) -> FloatArray:
    """Logits (n, k) as float32 or float64. `-inf` masks a class; NaN, `+inf` and a row of -inf are errors.

    A single column z of a binary model becomes [0, z]. With `scan=False` the caller checks the rows itself, with
    `check_logit_maxima`, while it reads them.
    """
    array = check_matrix(values, name)
    if array.shape[1] == 1:
        single, array = array, blocks.empty((array.shape[0], 2), array.dtype)
        array[:, :1], array[:, 1:] = 0, single
    check_prob_columns(array.shape[1], name, n_classes=n_classes)
    if array.dtype == np.float16:
        array = blocks.astype(array, np.float32)
    if scan:
        _scan_rows(array, lambda rows: check_logit_maxima(array[rows].max(axis=1), name, first_row=rows.start))
    return array


def check_logit_maxima(maxima: FloatArray, name: str = "logits", *, first_row: int = 0) -> None:
    """Refuse rows of logits by their maximum: NaN and +inf show in it, and -inf means that every class is masked."""
    bad = np.flatnonzero(~np.isfinite(maxima))
    if bad.size:
        raise ValueError(
            f"{name} must be finite, or -inf for a masked class, with a finite entry in every row; "
            f"{name_rows(bad + first_row, of=name)} NaN, +inf or no finite entry. Drop or repair those rows."
        )


def check_normalisers(totals: FloatArray, *, first_row: int = 0) -> None:
    """Refuse rows of logits whose softmax is none, by what it was divided by: they spread beyond what float64 holds."""
    bad = np.flatnonzero(~np.isfinite(totals))
    if bad.size:
        rows = name_rows(bad + first_row, "spreads", "spread", of="logits")
        raise ValueError(
            f"logits must spread less than 1e300 after scaling; {rows} further. Mask a class with -inf, not "
            "with the smallest number of its dtype."
        )


def check_probs(values: Any, name: str = "probs", *, n_classes: int | None = None, scan: bool = True) -> FloatArray:
    """Probabilities (n, k) as float32 or float64: in [0, 1], rows summing to 1 within the rounding of their dtype."""
    array = check_matrix(values, name)
    check_prob_columns(array.shape[1], name, n_classes=n_classes)
    loose = array.dtype == np.float16
    if loose:
        array = blocks.astype(array, np.float32)
    if scan:
        tolerance = 5e-3 if loose else 1e-4  # float32 softmax of 1e4 classes strays by about 1e-5
        _scan_rows(array, lambda rows: check_prob_rows(array[rows], name, first_row=rows.start, tolerance=tolerance))
    return array


def check_prob_columns(width: int, name: str = "probs", *, n_classes: int | None = None) -> None:
    """Refuse a single column of probabilities, and another number of columns than there are classes."""
    if width == 1:
        raise ValueError(
            f"{name} must have one column per class; got a single column. Pass np.c_[1 - p, p] for a binary model."
        )
    if n_classes is not None and width != n_classes:
        raise ValueError(f"{name} must have {n_classes} columns, one per class as when it was fitted; got {width}.")


def check_prob_rows(block: FloatArray, name: str = "probs", *, first_row: int = 0, tolerance: float = 1e-4) -> None:
    """Refuse a block of rows that are not distributions, naming the first bad row and what is wrong with it."""
    sums = np.vecdot(block, np.ones(block.shape[1], block.dtype))
    if block.min(initial=0.0) >= 0 and (np.abs(sums - 1) <= tolerance).all():  # of all at once: a third of the time
        return
    lowest = block.min(axis=1)
    bad = np.flatnonzero(~((np.abs(sums - 1) <= tolerance) & (lowest >= 0)))
    row = bad[0]
    if not np.isfinite(block[row]).all():
        raise ValueError(f"{name} must be finite; {name_rows(bad[:1] + first_row)} NaN or infinity. Drop or repair it.")
    if lowest[row] < 0:
        raise ValueError(
            f"{name} must lie between 0 and 1; row {own_row(row + first_row)} holds {lowest[row]:.6g}. "
            "Are these logits? Apply a softmax, or pass them where logits are asked for."
        )
    raise ValueError(
        f"{name} must have rows summing to 1; row {own_row(row + first_row)} sums to {sums[row]:.6g}. "
        "Are these logits or scores? Apply a softmax, or pass logits where logits are asked for."
    )


def check_labels(
    labels: ArrayLike, name: str = "labels", *, n_classes: int | None = None, n_rows: int | None = None
) -> NDArray[np.intp]:
    """Labels (n,) as column indices 0 .. k-1 of the logits or probabilities."""
    array = to_numpy(labels, name)
    if array.ndim != 1:
        raise ValueError(
            f"{name} must be one-dimensional, one class per sample; got shape {array.shape}. "
            + ("Pass its column, labels[:, 0]." if array.shape[1:] == (1,) else ONE_HOT)
        )
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(
            f"{name} must be integer column indices; got dtype {array.dtype}. "
            "Encode them in column order, for a scikit-learn model by np.searchsorted(model.classes_, labels), or give "
            "class_names to ModelOutputs."
        )
    if n_rows is not None:
        check_length(array, name, n_rows)
    if n_classes is not None:
        bad = np.flatnonzero((array < 0) | (array >= n_classes))
        if bad.size:
            raise ValueError(
                f"{name} must lie in 0 .. {n_classes - 1}, the columns; {name_rows(bad, 'is', 'are', of=name)} "
                f"outside (row {own_row(bad[0], name)} is {array[bad[0]]})."
                + (" Do they count from 1? Subtract 1." if array.min() > 0 and array.max() == n_classes else "")
            )
    return array.astype(np.intp, copy=False)


def check_vector(values: ArrayLike, name: str, *, n_rows: int | None = None, finite: bool = True) -> Doubles:
    """One real number per sample, as float64. `finite=False` lets infinities pass (a class never seen), never NaN."""
    array = _real(to_numpy(values, name), name)
    if array.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, one number per sample; got shape {array.shape}.")
    if n_rows is not None:
        check_length(array, name, n_rows)
    vector = array.astype(np.float64, copy=False)
    bad = np.flatnonzero(~np.isfinite(vector) if finite else np.isnan(vector))
    if bad.size:
        rule, came = ("finite", "NaN or infinity") if finite else ("a number", "NaN")
        raise ValueError(f"{name} must be {rule}; {name_rows(bad, of=name)} {came}. Drop or repair those rows.")
    return vector


def check_confidence(values: ArrayLike, name: str = "confidence", *, n_rows: int | None = None) -> NDArray[np.float64]:
    """Top probabilities (n,) as float64, in [0, 1] up to the rounding that `check_probs` allows."""
    vector = check_vector(values, name, n_rows=n_rows)
    bad = np.flatnonzero((vector < 0) | (vector > 1 + 1e-4))
    if bad.size:
        raise ValueError(
            f"{name} must lie between 0 and 1; {name_rows(bad)} another value (row {own_row(bad[0])} is "
            f"{vector[bad[0]]:.6g}). Pass the top entry of the probabilities, probs.max(axis=1)."
        )
    return vector


def check_names(values: Any, name: str) -> NDArray[Any]:
    r"""What names things, as a NumPy array: bytes are read as UTF-8, and text that files cannot keep is refused.

    NumPy drops NUL from the end of a text and Parquet cuts at the first; lone surrogates are not Unicode.

    >>> check_names([b"caf\xc3\xa9"], "ids")
    array(['café'], dtype='<U4')
    """
    array = to_numpy(values, name)
    if array.dtype.kind not in "OSU":
        return array
    if array.dtype.kind == "U" and isinstance(values, np.ndarray):
        bad = _odd_text_rows(array)
    else:
        texts = np.empty(array.size, object)
        given = np.asarray(values, object).ravel()  # a list's own texts: the array has lost NULs that ended them
        texts[:] = [_decoded(value, name) for value in given]
        array = array if array.dtype.kind == "U" else texts.reshape(array.shape)
        array = array.astype(str) if all(isinstance(text, str) for text in texts) else array
        bad = np.flatnonzero([isinstance(text, str) and ODD_TEXT.search(text) is not None for text in texts])
    if bad.size:
        raise ValueError(
            f"{name} must be text without NUL characters and lone surrogates; {name_rows(bad, of=name)} one. "
            "Replace them, for example with text.replace(chr(0), '')."
        )
    return array


def _decoded(value: Any, name: str) -> Any:
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} must be text; as bytes they are not UTF-8 ({error}). Decode them.") from error


def _odd_text_rows(array: NDArray[Any]) -> NDArray[np.intp]:
    """Rows of fixed-width text with a NUL before another character, or with a lone surrogate."""
    flat = array.reshape(-1)
    width, kind = flat.dtype.itemsize // 4, np.dtype("u4").newbyteorder(flat.dtype.byteorder)
    found = [np.empty(0, np.intp)]
    for rows in blocks.row_slices(flat.size if width else 0, blocks.block_rows(4 * width)):
        points = np.ascontiguousarray(flat[rows]).view(kind).reshape(-1, width)
        odd = ((points >= 0xD800) & (points <= 0xDFFF)).any(axis=1)
        odd |= ((points[:, :-1] == 0) & (points[:, 1:] != 0)).any(axis=1)
        found.append(np.flatnonzero(odd) + rows.start)
    return np.concatenate(found)


def is_missing(value: Any) -> bool:
    """Whether a value of a table is missing: None, NaN, or what pandas has for it.

    >>> [is_missing(value) for value in (None, float("nan"), "nan", 0)]
    [True, True, False, False]
    """
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float) and math.isnan(value)


def check_groups(values: ArrayLike, name: str = "groups", *, n_rows: int | None = None) -> NDArray[Any]:
    """One group per sample: integers, booleans or strings; never floats, whose equality is an accident."""
    array = check_names(values, name)
    if array.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, one group per sample; got shape {array.shape}.")
    if array.dtype.kind == "O" and any(isinstance(value, str) for value in array):
        rows = name_rows(np.flatnonzero([not isinstance(value, str) for value in array]), of=name)
        raise TypeError(f"{name} must be text in every row; {rows} something else. Name what is missing, or drop it.")
    if array.dtype.kind not in "iubU" and array.size:
        raise TypeError(
            f"{name} must be integers, booleans or strings; got dtype {array.dtype}. Cut numbers into groups first."
        )
    if n_rows is not None:
        check_length(array, name, n_rows)
    return array


def check_sample_weight(values: ArrayLike | None, n_rows: int, name: str = "sample_weight") -> Doubles | None:
    """Non-negative weights (n,), not all zero, or None."""
    if values is None:
        return None
    array = check_vector(values, name, n_rows=n_rows)
    bad = np.flatnonzero(array < 0)
    if bad.size:
        raise ValueError(f"{name} must not be negative; {name_rows(bad)} a negative weight.")
    if n_rows and not array.any():
        raise ValueError(f"{name} must not be all zero: no row would count.")
    return array


def check_length(array: NDArray[Any], name: str, n_rows: int) -> None:
    """Refuse an array with another number of rows than its companions."""
    if array.shape[0] != n_rows:
        raise ValueError(f"{name} must have one entry per row; got {array.shape[0]} for {n_rows} rows.")


def check_alpha(alpha: Any, name: str = "alpha") -> Fraction:
    """The allowed miscoverage as an exact fraction: 0.1 means one tenth, not its nearest binary number.

    >>> check_alpha(0.1)
    Fraction(1, 10)
    """
    number = alpha if isinstance(alpha, Fraction) else check_number(alpha, name)
    if not 0 < number < 1:
        hint = f" For {number:g} percent pass {float(number) / 100:g}." if 1 <= number < 100 else ""
        raise ValueError(f"{name} must lie strictly between 0 and 1; got {alpha!r}.{hint}")
    return number if isinstance(number, Fraction) else Fraction(repr(float(number)))


def check_number(
    value: Any,
    name: str,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    low_open: bool = False,
    high_open: bool = False,
) -> float:
    """A finite real number in a range."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating, Fraction)):
        raise TypeError(f"{name} must be a number; got {value!r}.")
    number = float(value)
    below = number <= low if low_open else number < low
    above = number >= high if high_open else number > high
    if not math.isfinite(number) or below or above:
        bounds = f"{'(' if low_open else '['}{low:g}, {high:g}{')' if high_open else ']'}"
        raise ValueError(f"{name} must be a finite number in {bounds}; got {value!r}.")
    return number


def check_integer(value: Any, name: str, *, low: int | None = None, high: int | None = None) -> int:
    """A whole number in a range."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be a whole number; got {value!r}.")
    number = operator.index(value)
    if (low is not None and number < low) or (high is not None and number > high):
        span = f"at least {low}" if high is None else f"at most {high}" if low is None else f"in {low} .. {high}"
        raise ValueError(f"{name} must be {span}; got {number}.")
    return number


def check_choice(value: Any, name: str, choices: Sequence[Any]) -> Any:
    """One of a closed list: a misspelt option never falls into an `else`."""
    plain = str(value) if isinstance(value, str) else value  # a search over an array of names gives NumPy strings
    if not any(plain is choice or (type(plain) is type(choice) and plain == choice) for choice in choices):
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}.")
    return value


def check_rows(rows: Any) -> slice | NDArray[Any]:
    """Which samples to take: a slice, positions (m,) or a mask (n,)."""
    if isinstance(rows, slice):
        return rows
    array = np.asarray(rows)
    if array.ndim != 1 or array.dtype.kind not in "iub":
        one = f" For one row take [{rows}:{rows + 1}]." if isinstance(rows, int) and rows >= 0 else ""
        raise TypeError(f"rows must be a slice, an array of positions or a boolean mask of one dimension.{one}")
    return array


@contextlib.contextmanager
def numbered(number: Callable[[int], Any] | None, class_names: NDArray[Any] | None = None) -> Iterator[None]:
    """Let errors about the rows of a part name those of the whole: `number` gives the user's row for one of the part.

    Classes have their names in errors where `class_names` (k,) are given.

    >>> with numbered(lambda row: row + 100, np.array(["cat", "dog"])):
    ...     name_rows(np.array([3])), name_classes([1])
    ('row 103 holds', "1 ('dog')")
    """
    row_token, class_token = _number.set(number), _class_names.set(class_names)
    try:
        yield
    finally:
        _number.reset(row_token)
        _class_names.reset(class_token)


def own_row(row: Any, of: str = "") -> Any:
    """The user's own row for a row of the part at hand; see `numbered`.

    What `numbered` gives may have a method `of`, which names the row in the file of one array.
    """
    number = _number.get()
    found = int(row) if number is None else number(int(row))
    return found.of(of) if hasattr(found, "of") else found


def name_rows(rows: NDArray[np.intp], one: str = "holds", many: str = "hold", *, of: str = "") -> str:
    """Rows `of` an array in words with their verb, at most five of them: 'row 3 holds', 'rows 3, 5 hold'."""
    if rows.size == 1:
        return f"row {own_row(rows[0], of)} {one}"
    return f"rows {first_of(rows, lambda row: str(own_row(row, of)))} {many}"


def first_of(values: NDArray[Any], show: Callable[[Any], str] = repr) -> str:
    """The first five of some values, with commas between them, and how many there are where these are more.

    >>> first_of(np.arange(7)), first_of(np.array(["a", "b"]))
    ('0, 1, 2, 3, 4, ... (7 in all)', "'a', 'b'")
    """
    shown = ", ".join(map(show, values[:5].tolist()))
    return f"{shown}, ... ({values.size} in all)" if values.size > 5 else shown


def name_classes(columns: Iterable[Any]) -> str:
    """Columns in words, at most five, each with the name of its class where it is known (see `numbered`)."""
    names = _class_names.get()

    def show(column: int) -> str:
        return f"{column} ({str(names[column])!r})" if names is not None and column < len(names) else str(column)

    return first_of(np.array(list(columns), np.intp), show)


def require(module: str, *, extra: str | None = None, feature: str) -> ModuleType:
    """Import an optional package, or say which extra brings it; without `extra` it is installed by its own name."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in (module, module.partition(".")[0]):  # installed, but broken inside: do not hide it
            raise
        what = module if extra is None else f"'atypicality[{extra}]'"
        raise ModuleNotFoundError(f"{feature} needs {module}: pip install {what}", name=module) from error


_caught: ContextVar[list[str] | None] = ContextVar("atypicality_caught", default=None)


@contextlib.contextmanager
def caught_warnings() -> Iterator[list[str]]:
    """Collect what `warn` says inside a `with` instead of showing it.

    Unlike `warnings.catch_warnings` it changes nothing that other threads share.

    >>> with caught_warnings() as caught:
    ...     warn("two groups became one")
    >>> caught
    ['two groups became one']
    """
    caught: list[str] = []
    token = _caught.set(caught)
    try:
        yield caught
    finally:
        _caught.reset(token)


def warn(message: str) -> None:
    """Warn at the caller's line: the nearest one outside this package, through however many of our own calls."""
    if (caught := _caught.get()) is not None:
        caught.append(message)
        return
    home, frame, level = os.path.dirname(os.path.dirname(__file__)) + os.sep, sys._getframe(1), 2
    between = home, contextlib.__file__  # whose managers are ours where they stand between our calls
    while frame.f_back is not None and frame.f_code.co_filename.startswith(between):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def warn_of_probabilities(logits: FloatArray) -> None:
    """Warn where the first rows of logits are all distributions, which logits never are by chance; they stay logits."""
    if len(logits) >= 10 and (message := look_like_probabilities(logits[:PROBED])):
        warn(message)


def look_like_probabilities(rows: Any, of: str = "") -> str | None:
    """What is wrong where these rows (n, k) of logits `of` something are all distributions; else None.

    >>> look_like_probabilities(np.array([[0.9, 0.1]]), "'test.npz'")
    "the logits of 'test.npz' look like probabilities: none is negative, and each row sums to 1. They are used as ..."
    """
    total = common_sum(rows)
    if total is None:
        return None
    return (
        f"the logits{' of ' if of else ''}{of} look like {'probabilities' if total == 1 else 'percentages or votes'}: "
        f"none is negative, and each row sums to {total:g}. They are used as they are; give what enters the softmax, "
        "or the logarithms of probabilities, np.log(probs), which `atypicality pack --probabilities` stores."
    )


def common_sum(rows: Any) -> float | None:
    """What all of some rows (n, k) sum to, where no entry is negative: 1 of probabilities, 100 of percentages.

    None where they do not, or sum to another number than 1 and are fewer than ten or have one entry each.

    >>> common_sum(np.array([[0.9, 0.1]])), common_sum(np.array([[90.0, 10.0]]))
    (1.0, None)
    """
    if not (
        rows >= 0
    ).all():  # first: nearly all logits end here, and one row is answered in a fraction of a millisecond
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        sums = np.asarray(rows).sum(axis=1, dtype=np.float64)
        total = float(f"{sums.mean():.3g}") if sums.size else 0.0
        alike = total > 0 and bool((np.abs(sums - total) <= 1e-3 * total).all())
    return total if alike and (total == 1 or (sums.size >= 10 and bool(((rows > 0).sum(axis=1) > 1).any()))) else None


def check_real(dtype: np.dtype[Any], name: str) -> None:
    """Refuse a type of array that is not one of real numbers."""
    if dtype.kind not in "fiub":
        raise TypeError(f"{name} must hold real numbers; got dtype {dtype}. Convert it with .astype(float).")


def _real(array: NDArray[Any], name: str) -> FloatArray:
    check_real(array.dtype, name)
    if array.dtype.kind == "f" and array.dtype.itemsize <= 8:
        return array if array.dtype.isnative else blocks.astype(array, array.dtype.newbyteorder("="))
    return blocks.astype(array, np.float64)


def _scan_rows(array: NDArray[Any], check: Any) -> None:
    blocks.for_rows(check, array.shape[0], block=blocks.block_rows(array.shape[1] * array.itemsize), work=blocks.LIGHT)
