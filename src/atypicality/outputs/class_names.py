"""Names of classes: checked, compared between outputs, and the labels that use them."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality.arrays import to_numpy
from atypicality.validation import check_labels, check_names, first_of, name_rows, own_row

__all__ = ["are_integers", "check_class_names", "class_order", "encode_labels", "refuse_two_readings"]


def check_class_names(class_names: ArrayLike) -> NDArray[Any]:
    """Distinct names of classes (k,), as text."""
    names = np.asarray([str(name) for name in check_names(class_names, "class_names").reshape(-1).tolist()])
    if not names.size:
        raise ValueError("class_names must name at least one class, in the order of the columns; got none.")
    values, counts = np.unique(names, return_counts=True)
    if (counts > 1).any():
        raise ValueError(f"class_names must be distinct; {str(values[counts > 1][0])!r} stands there more than once.")
    return names


def class_order(
    found: NDArray[Any] | None, wanted: NDArray[Any] | None, whose: str = "those given"
) -> NDArray[np.intp] | None:
    """Columns of `found` names in the order of the `wanted` ones; None where they are so already, or not comparable.

    >>> class_order(np.array(["cat", "dog", "ant"]), np.array(["ant", "cat", "dog"]))
    array([2, 0, 1])
    """
    if found is None or wanted is None or np.array_equal(found, wanted):
        return None
    if odd := [str(name)[:40] for name in np.setxor1d(found, wanted)]:
        shown = ", ".join(map(repr, odd[:5])) + (", ..." if len(odd) > 5 else "")
        raise ValueError(
            f"class_names must be {whose}, in any order; {len(odd)} are on one side only: {shown}. Are these outputs "
            "of another model? Where only the spelling differs, rename the classes, or leave class_names out."
        )
    columns = np.argsort(found)
    return columns[np.searchsorted(found, wanted, sorter=columns)]


def encode_labels(labels: ArrayLike, class_names: NDArray[Any] | None) -> NDArray[np.intp]:
    """Labels (n,) as columns: integers are columns, anything else is looked up among the names."""
    array = to_numpy(labels, "labels")
    if array.dtype.kind in "iu" or array.ndim != 1 or array.size == 0:
        codes = check_labels(array)
        if class_names is not None:
            refuse_two_readings(codes, class_names, "labels")
        return codes
    if class_names is None:
        _refuse_numbers(array)
        what = "text labels" if array.dtype.kind in "USO" else f"labels of dtype {array.dtype}"
        raise TypeError(
            f"{what} need class_names, in the order of the columns; integers are column indices. From the shell: "
            "--class-names FILE."
        )
    order = np.argsort(class_names)
    values = check_names(labels, "labels").astype(class_names.dtype.type)
    place = np.minimum(np.searchsorted(class_names, values, sorter=order), class_names.size - 1)
    codes = order[place]
    unknown = np.flatnonzero(class_names[codes] != values)
    if unknown.size:
        _refuse_numbers(array)
        told = first_of(unknown, lambda row: f"row {own_row(row, 'labels')} is {str(array[row])!r:.60}")
        raise ValueError(f"labels must be among class_names; {told}. Correct them, or drop those rows.")
    return codes.astype(np.intp)


def _refuse_numbers(labels: NDArray[Any]) -> None:
    """Refuse labels that are numbers of another kind than columns have."""
    if labels.dtype.kind not in "fb":
        return
    missing = np.flatnonzero(labels != labels)  # NaN alone is not equal to itself
    gone = f" Drop rows without a label: {name_rows(missing, of='labels')} NaN." if missing.size else ""
    raise TypeError(
        f"labels must be whole numbers, the columns from 0, or names of classes; got dtype {labels.dtype}. Convert "
        f"them with .astype(int), in a file too.{gone}"
    )


def refuse_two_readings(codes: NDArray[np.intp], class_names: NDArray[Any], name: str) -> None:
    """Refuse integers, which are columns by our rule, where all of them are names as well, and of other columns."""
    if not are_integers(class_names):
        return
    found = np.unique(codes).tolist()
    columns = {int(text): column for column, text in enumerate(class_names.tolist())}
    named = [columns.get(code) for code in found]
    if None not in named and named != found:
        raise ValueError(
            f"{name} must be text where class_names are integers in another order than 0, 1, 2, ...: integers are "
            f"columns, and {found[0]} could also be meant as the name {str(found[0])!r}. Pass str(label) for names, or "
            "class_names[column] as text for columns."
        )


def are_integers(class_names: NDArray[Any]) -> bool:
    """Whether all names are whole numbers written out, no longer than a label can be."""
    return all(name.removeprefix("-").isdecimal() and len(name) <= 20 for name in class_names.tolist())
