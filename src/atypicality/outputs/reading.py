"""Files as parts of outputs: arrays of several files together, under our names."""

import difflib
import os
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality import blocks
from atypicality.outputs.class_names import check_class_names
from atypicality.outputs.files import READERS, read_arrays
from atypicality.outputs.limits import UnreadableFileError
from atypicality.outputs.paths import check_source
from atypicality.outputs.tables import NUMBER, NUMBERED, place_in, refuse_answers
from atypicality.terminal import listed
from atypicality.validation import warn

__all__ = [
    "ATTRIBUTE",
    "PER_CLASS",
    "PER_ROW",
    "ArrayFile",
    "FileParts",
    "FilePath",
    "read_class_names",
    "read_parts",
    "warn_of_unnamed",
]  # fmt: skip

FilePath = str | os.PathLike[str]

PER_ROW = ("logits", "embeddings", "labels", "atypicality", "ids")
PER_CLASS = ("class_atypicality", "class_names")
MATRICES = ("logits", "embeddings")
ATTRIBUTE = "attribute."


class ArrayFile(NamedTuple):
    """The file that an array came from, and which of its rows are those of the outputs, where these were ordered."""

    file: str
    rows: NDArray[np.intp] | None = None


class FileParts(NamedTuple):
    """What some files hold: arguments of `ModelOutputs`, where each came from, and names that did not fit."""

    parts: dict[str, Any]
    places: dict[str, ArrayFile]
    absent: set[str]  # names that were given and that no file has
    unnamed: list[str]  # arrays that are left out


def read_parts(
    paths: Sequence[FilePath],
    names: Mapping[str, str],
    class_names: ArrayLike | None = None,
    max_bytes: int | None = None,
    *,
    optional: Container[str] = (),
) -> FileParts:
    """The arguments of `ModelOutputs` that some files hold; `names` maps ours to theirs.

    Rows of files that all have ids, in a column of that name or `id`, are put into the order of the first.

    A name that ends in `*` is that of all numeric columns that begin so: in the order of their numbers where all are
    numbered, else in their own, in which the rest names the classes of logits. Any other name with a star is that of
    the one array that it fits.

    A name that no file has is an error, unless it is given for one of our `optional` names.
    """
    own = (names["ids"],) if "ids" in names else ("ids", "id")
    file = _file_names(paths)
    arrays, places = _read_together(paths, max_bytes, own)
    _gather(arrays, places, names, file)
    absent = {theirs for ours, theirs in names.items() if theirs not in arrays and ours in optional}
    names = {ours: theirs for ours, theirs in names.items() if theirs not in absent}
    parts, unnamed = _known_parts(arrays, names, file)
    places |= {ours: places[theirs] for ours, theirs in names.items() if theirs in places}
    if class_names is not None:
        parts["class_names"] = _agreed_names(class_names, parts.get("class_names"), file)
    return FileParts(parts, places, absent, unnamed)


def warn_of_unnamed(unnamed: Sequence[str], paths: Sequence[FilePath]) -> None:
    """Say which arrays of the files are left out, where there are any."""
    if unnamed:
        warn(
            f"{_file_names(paths)!r} also has {_shown(unnamed)}, ignored. Where one is of "
            f"{', '.join(PER_ROW)}, say so with names= (--names in a shell); name a column of the samples "
            f"{ATTRIBUTE}<name> to keep it."
        )


def read_class_names(path: FilePath) -> NDArray[Any]:
    """Names of classes in the order of the columns: the one array of a file that holds arrays, else a line each."""
    source = check_source(path)
    if source.suffix.lower() in READERS:
        arrays = read_arrays(source)
        if len(arrays) != 1:
            raise ValueError(f"{source.name!r} must hold one array, of names of classes; it has: {listed(arrays)}.")
        return check_class_names(next(iter(arrays.values())))
    try:
        lines = source.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise UnreadableFileError(f"{source.name!r} must be text in UTF-8, one class per line: {error}.") from error
    found = [line.strip() for line in lines if line.strip()]
    if len(found) == 1 and any(sign in found[0] for sign in ",;\t["):
        raise UnreadableFileError(f"{source.name!r} must name one class per line; its only line is {found[0]!r:.60}.")
    return check_class_names(found)


def _file_names(paths: Sequence[FilePath]) -> str:
    return ", ".join(os.path.basename(os.path.normpath(path)) for path in paths)


def _read_together(
    paths: Sequence[FilePath], max_bytes: int | None, own: tuple[str, ...]
) -> tuple[dict[str, NDArray[Any]], dict[str, ArrayFile]]:
    """Arrays of all files by name, and where each came from.

    A name that two files have is an error, but for `own`, those that ids can have: by them rows are put in order.
    """
    if not paths:
        raise ValueError("path must be a file or a folder, or several; got none.")
    found: dict[str, NDArray[Any]] = {}
    places: dict[str, ArrayFile] = {}
    for path in paths:
        arrays, file, rows = read_arrays(path, max_bytes=max_bytes), _file_names([path]), None
        first, here = (next((name for name in own if name in part), None) for part in (found, arrays))
        if first is not None and here is not None:
            rows = _rows_in_order(found[first], arrays.pop(here), file)
        if rows is not None:
            arrays = {
                name: part if name in PER_CLASS else blocks.take_rows(part, rows) for name, part in arrays.items()
            }
        both = sorted(found.keys() & arrays.keys())
        if twice := [name for name in both if name != "class_names" or not np.array_equal(found[name], arrays[name])]:
            raise ValueError(
                f"{file!r} has an array {twice[0]!r}, and so has a file before it. If it says which row is which, pass "
                f"names={{'ids': {twice[0]!r}}} (--names ids={twice[0]} in a shell), by which rows are joined; else "
                "rename one of them."
            )
        found |= arrays
        places |= dict.fromkeys(arrays, ArrayFile(file, rows))
    return found, places


def _rows_in_order(wanted: NDArray[Any], ids: NDArray[Any], file: str) -> NDArray[np.intp] | None:
    """The rows of a file that have `ids`, in the order of the `wanted` ones of files before it; None if they are so."""
    wanted, ids = wanted.astype(str), ids.astype(str)
    if np.array_equal(ids, wanted):
        return None
    places = {name: row for row, name in enumerate(ids.tolist())}
    odd = sorted(set(wanted.tolist()) ^ places.keys())
    if odd or not len(places) == ids.size == wanted.size:
        what = f"{len(odd):,} are on one side only, such as {odd[0]!r:.60}" if odd else "some stand there twice"
        raise ValueError(
            f"{file!r} must have the ids of the files before it, each once, to be put into their order; {what}. Drop "
            "rows that one of them lacks, or leave the ids out where rows are in the same order."
        )
    return np.array([places[name] for name in wanted.tolist()], np.intp)


def _gather(arrays: dict[str, NDArray[Any]], places: dict[str, ArrayFile], names: Mapping[str, str], file: str) -> None:
    """Give what a name with a star stands for that name: columns, as one matrix, or one array."""
    for ours, theirs in ({name: name for name in MATRICES} | dict(names)).items():
        starred = theirs.endswith("*")
        if theirs in arrays or not ("*" in theirs or ours in MATRICES):
            continue
        if (whole := _array_like(arrays, theirs, file)) is not None:
            arrays[theirs], places[theirs] = arrays.pop(whole), places[whole]
            continue
        columns = _columns_of(arrays, theirs)
        _refuse_text(arrays, columns, theirs, file, every=ours == "logits")
        columns = [name for name in columns if arrays[name].dtype.kind in "iuf"]
        numbers = _numbers(columns)
        counted = numbers and min(numbers) == 0 and max(numbers) == len(numbers) - 1
        if numbers and (counted or not (starred and ours == "logits")):  # logits may be of classes named by numbers
            _refuse_gap(numbers, file)
            columns = [numbers[number] for number in sorted(numbers)]
        if not (starred and columns):
            continue
        if ours == "logits" and not counted and arrays[columns[0]].ndim == 1:
            classes = np.array([name[len(theirs) - 1 :] for name in columns])
            arrays["class_names"] = _agreed_names(classes, arrays.get("class_names"), theirs)
        parts, places[theirs] = [arrays.pop(name) for name in columns], places[columns[0]]
        arrays[theirs] = parts[0] if parts[0].ndim == 2 else np.stack(parts, axis=1)


def _array_like(arrays: dict[str, NDArray[Any]], theirs: str, file: str) -> str | None:
    """The one array whose name fits a name with a star, such as `*_emb`; None where it stands for columns."""
    if "*" not in theirs:
        return None
    fits = re.compile(".*".join(map(re.escape, theirs.split("*")))).fullmatch
    found = [name for name in arrays if fits(name) and (arrays[name].ndim == 2 or not theirs.endswith("*"))]
    if theirs.endswith("*") and (len(found) != 1 or any(fits(name) for name in arrays if name not in found)):
        return None
    if len(found) > 1:
        raise ValueError(
            f"{theirs!r} must fit one array of {file!r}; it fits {listed(found[:3])}. Give more of its name."
        )
    return found[0] if found else None


def _columns_of(arrays: dict[str, NDArray[Any]], theirs: str) -> list[str]:
    """Columns that a name stands for: with a star all that begin so, or the matrix that they became, else numbered."""
    single = [name for name in arrays if arrays[name].ndim == 1]
    start = theirs.removesuffix("*")
    if theirs == start:
        return [name for name in single if (found := NUMBERED.fullmatch(name)) and found["name"] == theirs]
    matrix = start.rstrip("._[")
    if matrix == start or matrix not in arrays or arrays[matrix].ndim != 2:
        return [name for name in single if name.startswith(start)]
    if others := [name for name in single if name.startswith(start) and arrays[name].dtype.kind in "iuf"]:
        raise ValueError(
            f"{theirs!r} matches numbered columns and {listed(others[:3])}. Give {matrix} for the numbered ones, or "
            "rename the others."
        )
    return [matrix]


def _numbers(columns: Sequence[str]) -> dict[int, str]:
    """Columns by number; none where one has no number."""
    found = [NUMBERED.fullmatch(name) for name in columns]
    if len(found) < 2 or not all(found):
        return {}
    numbers = [int(match["plain"] or match["index"]) for match in found if match]
    return dict(zip(numbers, columns, strict=True)) if len(set(numbers)) == len(columns) else {}


def _refuse_text(
    arrays: dict[str, NDArray[Any]], columns: Sequence[str], theirs: str, file: str, *, every: bool
) -> None:
    """Refuse columns with text among numbers; one that holds no number is something else, unless `every` one counts."""
    texts = [name for name in columns if arrays[name].dtype.kind in "US" and arrays[name].size]
    for name in texts:
        cells = [str(cell) for cell in arrays[name].tolist()]
        odd = [row for row, cell in enumerate(cells) if not NUMBER.fullmatch(cell.strip())]
        if every or len(odd) < len(cells) or len(texts) == len(columns):
            row = next(iter(odd), 0)
            raise ValueError(
                f"{file!r}: {len(columns)} columns match {theirs}, but {len(texts)} of them hold text, such as "
                f"{name!r} in {place_in(file, row)}: {cells[row][:60]!r}. Write decimal points, and one number a cell."
            )


def _refuse_gap(numbers: Mapping[int, str], file: str) -> None:
    if missing := sorted(set(range(min(numbers), max(numbers))) - numbers.keys()):
        known = numbers[min(numbers)]
        lost = re.sub(r"\d+(?=\]?$)", str(missing[0]), known)
        raise ValueError(
            f"{file!r} has numbered columns from {known!r} to {numbers[max(numbers)]!r} without {lost!r}"
            f"{f' and {len(missing) - 1} more' if len(missing) > 1 else ''}. Add it, or number them without a gap."
        )


def _agreed_names(given: ArrayLike, found: ArrayLike | None, file: str) -> NDArray[Any]:
    names = check_class_names(given)
    if found is not None and not np.array_equal(names, check_class_names(found)):
        raise ValueError(
            f"class_names must be those of {file!r}, in the same order, where both are given. Leave out the wrong ones."
        )
    return names


def _known_parts(
    arrays: dict[str, NDArray[Any]], names: Mapping[str, str], file: str
) -> tuple[dict[str, Any], list[str]]:
    """The arrays under our names, and what is left."""
    there = _shown(arrays) or "nothing"
    for ours, theirs in names.items():
        if ours not in PER_ROW + PER_CLASS and not ours.startswith(ATTRIBUTE):
            turned = f" Turn it round: {{{theirs!r}: {ours!r}}}." if theirs in PER_ROW + PER_CLASS else ""
            known = ", ".join(PER_ROW + PER_CLASS)
            raise ValueError(f"names must map our names ({known}) to the file's; got {ours!r}.{turned}")
        if theirs not in arrays:
            raise ValueError(f"{file!r} has no array {theirs!r} for {ours}; it has: {there}.")
        arrays[ours] = arrays.pop(theirs)
    parts = {name: arrays.pop(name) for name in PER_ROW + PER_CLASS if name in arrays}
    attributes = {name.removeprefix(ATTRIBUTE): arrays.pop(name) for name in list(arrays) if name.startswith(ATTRIBUTE)}
    _explain_unknown(arrays, parts, there, file)
    return {**parts, "attributes": attributes}, sorted(arrays)


def _shown(names: Iterable[str]) -> str:
    return listed(name or "(no name)" for name in sorted(names))


def _explain_unknown(unknown: Mapping[str, NDArray[Any]], parts: dict[str, Any], there: str, file: str) -> None:
    if "logits" not in parts:
        refuse_answers(set(unknown), file)
    for name in sorted(unknown):
        missing = [known for known in PER_ROW + PER_CLASS if known not in parts]
        close = difflib.get_close_matches(name.lower(), missing, n=1, cutoff=0.8)
        if close:
            counted = [other for other in unknown if other.rstrip("0123456789") == name.rstrip("0123456789")]
            text = next((other for other in counted if unknown[other].dtype.kind in "US"), None)
            if len(counted) > 1 and text is not None:
                raise ValueError(
                    f"{file!r} must have numbers in the columns of {close[0]}; {text!r} holds text, such as "
                    f"{str(unknown[text][0])!r:.40}. Write decimal points, and one number a cell."
                )
            meant = name.rstrip("0123456789") + "*" if len(counted) > 1 else name
            raise ValueError(
                f"{file!r} has no array {close[0]!r}; it has: {there}. If {meant!r} is meant, pass "
                f"names={{{close[0]!r}: {meant!r}}}, or --names '{close[0]}={meant}' in a shell."
            )
    if not parts:
        raise ValueError(
            f"{file!r} has none of {', '.join(PER_ROW)}; it has: {there}. Say which is which: "
            "names={'logits': 'theirs'} in ModelOutputs.load, or --names logits=theirs in a shell."
        )
