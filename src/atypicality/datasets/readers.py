"""Files of public data sets, in the formats that they are published in; no pickle is ever loaded."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from atypicality.outputs.paths import members

__all__ = ["Entry", "read_ag_news", "read_cifar", "read_class_folders", "read_fitzpatrick", "read_imdb", "read_list"]

PIXELS = 3 * 32 * 32
IMAGE_ENDINGS = (".jpeg", ".jpg", ".png", ".webp", ".bmp")
SKIN_TONES = ("Unknown", "1-2", "3-4", "5-6")
FITZPATRICK_NAMES = ("fitzpatrick_scale", "fitzpatrick")


class Entry(NamedTuple):
    """One sample: what it is, and its class as the file writes it."""

    source: Any
    label: str


def read_cifar(files: list[Path], n_labels: int) -> tuple[NDArray[np.uint8], NDArray[np.intp]]:
    """Images (n, 32, 32, 3) and labels (n,) of the binary version; the last of `n_labels` bytes is the class."""
    parts = []
    for file in files:
        data = np.fromfile(file, np.uint8)
        if data.size == 0 or data.size % (PIXELS + n_labels):
            raise ValueError(
                f"{file.name!r} must be records of {PIXELS + n_labels} bytes, as in the binary version; it has "
                f"{data.size} bytes."
            )
        parts.append(data.reshape(-1, PIXELS + n_labels))
    rows = np.concatenate(parts)
    images = rows[:, n_labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), rows[:, n_labels - 1].astype(np.intp)


def read_trec(file: Path) -> Iterator[Entry]:
    """Lines `COARSE:fine question` in latin-1."""
    for number, line in _lines(file, "latin-1"):
        code, _, question = line.strip().partition(" ")
        if ":" not in code or not question:
            raise ValueError(f"line {number} of {file.name!r} must be 'COARSE:fine question'; got {line[:40]!r}.")
        yield Entry(question, code.partition(":")[0])


def read_ag_news(file: Path) -> Iterator[Entry]:
    """Rows class index, title, description; with a header or without."""
    with open(file, encoding="utf-8", newline="") as stream:
        for number, row in enumerate(csv.reader(stream), start=1):
            if number == 1 and row and not row[0].isdigit():
                continue
            if len(row) != 3:
                raise ValueError(f"row {number} of {file.name!r} must have a class, a title and a description.")
            yield Entry(f"{row[1]} {row[2]}", row[0])


def read_mnli(file: Path) -> Iterator[Entry]:
    """JSON Lines with `sentence1`, `sentence2` and `gold_label`; rows without agreement ("-") are left out."""
    for number, line in _lines(file, "utf-8"):
        try:
            row = json.loads(line)
            record = Entry((row["sentence1"], row["sentence2"]), row["gold_label"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"line {number} of {file.name!r} must be an object with sentence1, sentence2 and gold_label "
                f"({type(error).__name__}: {error})."
            ) from error
        if record.label != "-":
            yield record


def read_imdb(folder: Path) -> Iterator[Entry]:
    """One review per file in the folders `neg` and `pos`, in the order of their numbers."""
    for label in ("neg", "pos"):
        for file in sorted(members(folder / label, ".txt"), key=lambda file: (len(file.name), file.name)):
            yield Entry(file.read_text(encoding="utf-8"), label)


def read_class_folders(folder: Path) -> Iterator[Entry]:
    """Image files in one folder per class, sorted; hidden ones are left out."""
    for part in sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")):
        for file in sorted(part.iterdir()):
            if file.suffix.lower() in IMAGE_ENDINGS and not file.name.startswith("."):
                yield Entry(file, part.name)


def read_list(file: Path, images: Path) -> Iterator[Entry]:
    """Lines `path/of/image.jpg 17`, paths relative to `images`."""
    for number, line in _lines(file, "utf-8"):
        path, _, label = line.rpartition(" ")
        if not path or not label.isdigit():
            raise ValueError(f"line {number} of {file.name!r} must be 'image label'; got {line[:40]!r}.")
        if Path(path).is_absolute() or ".." in Path(path).parts:
            raise ValueError(f"line {number} of {file.name!r} must stay inside the folder of images; got {path!r}.")
        yield Entry(images / path, label)


class SkinImage(NamedTuple):
    """One row of the Fitzpatrick17k table."""

    file: Path
    label: str
    tone: str


def read_fitzpatrick(file: Path, images: Path) -> Iterator[SkinImage]:
    """The published table: `md5hash`, the Fitzpatrick scale (1 to 6, -1 unknown) and `nine_partition_label`."""
    with open(file, encoding="utf-8", newline="") as stream:
        table = csv.DictReader(stream)
        names = table.fieldnames or []
        scale = next((name for name in FITZPATRICK_NAMES if name in names), None)
        missing = [name for name in ("md5hash", "nine_partition_label") if name not in names]
        if scale is None or missing:
            wanted = ", ".join([*missing, *([] if scale else ["fitzpatrick_scale"])])
            raise ValueError(f"{file.name!r} must have the columns of Fitzpatrick17k; it lacks {wanted}.")
        for number, row in enumerate(table, start=2):
            code = row["md5hash"]
            if not code or not code.isalnum():
                raise ValueError(f"row {number} of {file.name!r} must name an image by its hash; got {code!r}.")
            tone = _skin_tone(row[scale], number, file)
            yield SkinImage(images / f"{code}.jpg", row["nine_partition_label"], tone)


def _lines(file: Path, encoding: str) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, with their numbers; only line feeds end one (latin-1 has other separators)."""
    with open(file, encoding=encoding) as stream:
        yield from ((number, line.rstrip("\n")) for number, line in enumerate(stream, start=1) if line.strip())


def _skin_tone(value: str | None, number: int, file: Path) -> str:
    try:
        scale = int(float(value or -1))
    except ValueError:
        scale = 0
    if scale == -1:
        return SKIN_TONES[0]
    if not 1 <= scale <= 6:
        raise ValueError(f"row {number} of {file.name!r} must have a scale of 1 to 6, or -1; got {value!r}.")
    return SKIN_TONES[(scale + 1) // 2]
