"""The samples themselves beside their predictions: images as thumbnails, texts, or rows of a table."""

import base64
import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.arrays import to_numpy
from atypicality.validation import is_missing, require

__all__ = ["EXAMPLE_BYTES", "Examples", "checked_pixels", "png_url", "read_examples"]

EXAMPLE_BYTES = 12_000_000  # most bytes of examples in a page
THUMBNAIL = 96  # longest side of an image in a page, in pixels
LONGEST_TEXT = 600
MOST_COLUMNS = 30


@dataclass(frozen=True)
class Examples:
    """Images, texts or lists of cells by row of the outputs."""

    kind: str  # "image", "text" or "table"
    at: Mapping[int, Any]
    columns: Sequence[str] = ()  # of a table

    def page_data(self, rows: Sequence[int]) -> dict[str, Any]:
        """Examples of these rows, in this order, as long as they fit: thumbnails as data URLs, texts cut."""
        shown: dict[int, Any] = {}
        room = EXAMPLE_BYTES
        for row in rows:
            if row not in self.at:
                continue
            one = self._shown(self.at[row])
            room -= len(one) if isinstance(one, str) else sum(len(str(part)) + 3 for part in one)
            if room < 0:
                break
            shown[row] = one
        return {"kind": self.kind, "columns": list(self.columns), "at": shown, "shown": len(shown)}

    def _shown(self, one: Any) -> Any:
        if self.kind == "image":
            return png_url(_thumbnail(checked_pixels(one)))
        if self.kind == "text":
            return _cut(one)
        cells = ("" if is_missing(value) else value for value in one)
        return [value if isinstance(value, bool | int | float) else _cut(value) for value in cells]


def read_examples(examples: Any, n_samples: int) -> Examples:
    """Examples in any of the forms that `render_report` takes, checked.

    >>> read_examples(["one text", "another"], 2).kind
    'text'
    """
    if hasattr(examples, "columns") and hasattr(examples, "to_dict"):  # a data frame
        examples = {str(name): examples[name].to_numpy() for name in examples.columns}
    if isinstance(examples, Mapping) and examples and all(isinstance(key, str) for key in examples):
        return _table(examples, n_samples)
    if isinstance(examples, Mapping):
        at = {_row(row, n_samples): value for row, value in examples.items()}
    elif isinstance(examples, (str, bytes)) or not hasattr(examples, "__len__"):
        raise TypeError(_forms(f"got {type(examples).__name__}"))
    elif len(examples) != n_samples:
        raise ValueError(f"examples must have one entry per sample, {n_samples}; got {len(examples)}.")
    else:
        at = dict(enumerate(examples))
    kinds = {_kind(value) for value in at.values()}
    if len(kinds) != 1:
        raise TypeError(_forms(f"got {'none' if not kinds else 'several kinds'}"))
    return Examples(kinds.pop(), at)


def _forms(got: str) -> str:
    return (
        "examples must be images (arrays or tensors, of uint8 or of floats from 0 to 1; or paths as pathlib.Path), "
        "texts, a mapping of names to columns, "
        f"or a mapping of rows to images or texts; {got}."
    )


def _row(row: Any, n_samples: int) -> int:
    number = int(row) if isinstance(row, int | np.integer) and not isinstance(row, bool) else -1
    if not 0 <= number < n_samples:
        raise ValueError(f"examples must be of rows 0 to {n_samples - 1}; got {row!r:.60}.")
    return number


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return "text"
    if isinstance(value, os.PathLike | np.ndarray) or type(value).__module__.partition(".")[0] == "torch":
        return "image"
    raise TypeError(_forms(f"one is a {type(value).__name__}"))


def _table(columns: Mapping[str, Any], n_samples: int) -> Examples:
    if len(columns) > MOST_COLUMNS:
        raise ValueError(f"examples must have at most {MOST_COLUMNS} columns to show; got {len(columns)}.")
    arrays = {name: np.asarray(column) for name, column in columns.items()}
    for name, column in arrays.items():
        if column.shape != (n_samples,):
            raise ValueError(f"examples column {name!r} must have shape ({n_samples},); got {column.shape}.")
    rows = zip(*(column.tolist() for column in arrays.values()), strict=True)
    return Examples("table", dict(enumerate(map(list, rows))), list(arrays))


def _cut(value: Any) -> str:
    text = str(value)
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"


def checked_pixels(image: Any) -> NDArray[np.uint8]:
    """An image as uint8 of shape (height, width) or (height, width, 3)."""
    if isinstance(image, os.PathLike):
        opened = require("PIL.Image", feature="showing image files").open(image)
        with opened:
            opened.thumbnail((THUMBNAIL, THUMBNAIL))
            return np.asarray(opened.convert("RGB"), np.uint8)
    pixels = _from_unit(_channels_last(to_numpy(image, "examples")))
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] != 3):
        raise ValueError(
            "examples must be texts or images of shape (height, width), (height, width, 3), (1, height, width) or "
            "(3, height, width), of type uint8 or float from 0 to 1 (undo a normalisation of channels); "
            f"got {pixels.dtype} of shape {pixels.shape}."
        )
    return pixels


def _channels_last(pixels: NDArray[Any]) -> NDArray[Any]:
    """One channel first, as tensors of images have it, without its axis, and three of them last."""
    if pixels.ndim == 3 and pixels.shape[0] in (1, 3) and pixels.shape[2] != 3:
        return pixels[0] if pixels.shape[0] == 1 else np.moveaxis(pixels, 0, 2)
    return pixels


def _from_unit(pixels: NDArray[Any]) -> NDArray[Any]:
    if pixels.dtype.kind == "f" and pixels.size and pixels.min() >= 0 and pixels.max() <= 1:
        return (255 * pixels).round().astype(np.uint8)
    return pixels


def _thumbnail(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Means of equal blocks, so that no side is longer than a thumbnail's."""
    step = -(-max(pixels.shape[:2]) // THUMBNAIL)
    if step <= 1:
        return pixels
    height, width = (max(side // step, 1) for side in pixels.shape[:2])
    blocks = pixels[: height * step, : width * step].reshape(height, step, width, step, *pixels.shape[2:])
    return np.asarray(blocks.mean(axis=(1, 3)).round(), np.uint8)


def png_url(pixels: NDArray[np.uint8]) -> str:
    """A uint8 image as a data URL: PNG, by its specification a header, deflated rows each led by 0, and an end.

    >>> png_url(np.zeros((2, 2), np.uint8))[:22]
    'data:image/png;base64,'
    """
    height, width = pixels.shape[:2]
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if pixels.ndim == 3 else 0, 0, 0, 0)
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b""))
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + body).decode()
