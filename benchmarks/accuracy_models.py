"""Trained classifiers and what they say of corrupted rows: images, texts, and a table of measurements.

Each has rows that trained it, held-out rows, and rows of every corruption at three strengths. Nothing is downloaded:
digits come with scikit-learn; the folder of Fashion-MNIST (idx files), the file of AG News, the folders of TREC, of
Banking77, of the emotions of TweetEval and of CLINC150, and the files of UCI's letter recognition and pen-based digits
are given.
"""

import csv
import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from sklearn.datasets import load_digits
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.neural_network import MLPClassifier

from atypicality.outputs import ModelOutputs

__all__ = ["Bed", "beds", "corruptions"]

STRENGTHS = (1, 2, 3)
TRAIN_IMAGES = 12_000
MOST_NEW = 3000
"""Rows to corrupt of texts and tables: transport plans of many classes take their time."""

Images = NDArray[np.float64]


@dataclass(frozen=True)
class Bed:
    """A classifier's outputs: rows that trained it, held-out rows, and new rows as they are and corrupted."""

    name: str
    train: ModelOutputs
    held_out: ModelOutputs
    corrupted: dict[str, ModelOutputs]


def beds(given: Mapping[str, Path]) -> Iterator[Bed]:
    """The test beds whose data is at hand, by name; digits always are."""
    digits, labels = load_digits(return_X_y=True)
    yield _image_bed("digits", digits.reshape(-1, 8, 8) / 16.0, labels, n_train=700, n_held_out=500, width=64)
    if fashion := given.get("clothes"):
        images, labels = (_idx(next(fashion.glob(f"t10k-{kind}*"))) for kind in ("images", "labels"))
        more, more_labels = (_idx(next(fashion.glob(f"train-{kind}*"))) for kind in ("images", "labels"))
        images, labels = np.r_[images, more[:TRAIN_IMAGES]] / 255.0, np.r_[labels, more_labels[:TRAIN_IMAGES]]
        yield _image_bed("clothes", images, labels, n_train=TRAIN_IMAGES, n_held_out=4000, width=100)
    if file := given.get("news"):
        yield _text_bed("news", _news(file), n_train=3000, n_held_out=2000)
    if folder := given.get("questions"):
        yield _text_bed("questions", _questions(folder), n_train=2500, n_held_out=1500)
    if folder := given.get("banking"):
        yield _text_bed("banking", _banking(folder), n_train=5000, n_held_out=3000)
    if file := given.get("letters"):
        yield _table_bed("letters", *_letters(file), n_train=6000, n_held_out=3000)
    if folder := given.get("emotions"):
        yield _text_bed("emotions", _emotions(folder), n_train=2000, n_held_out=1200)
    if folder := given.get("domains"):
        yield _text_bed("domains", _domains(folder), n_train=5000, n_held_out=3000)
    if file := given.get("pens"):
        yield _table_bed("pens", *_pens(file), n_train=3000, n_held_out=2000)


def _idx(path: Path) -> NDArray[Any]:
    data = gzip.decompress(path.read_bytes())
    shape = np.frombuffer(data, ">u4", data[3], 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(shape)


def _image_bed(name: str, images: Images, labels: NDArray[Any], *, n_train: int, n_held_out: int, width: int) -> Bed:
    rng = np.random.default_rng(0)
    order = rng.permutation(len(images))
    images, labels = images[order], labels[order].astype(np.intp)
    train, held_out, new = np.split(np.arange(len(images)), [n_train, n_train + n_held_out])
    model = _trained(images[train].reshape(n_train, -1), labels[train], width)

    def outputs(pixels: Images, rows: NDArray[np.intp]) -> ModelOutputs:
        return _outputs(model, pixels.reshape(len(pixels), -1), labels[rows])

    corrupted = {"none": outputs(images[new], new)}
    for kind, corrupt in corruptions().items():
        for strength in STRENGTHS:
            corrupted[f"{kind} {strength}"] = outputs(np.clip(corrupt(images[new], strength, rng), 0, 1), new)
    return Bed(name, outputs(images[train], train), outputs(images[held_out], held_out), corrupted)


def _trained(columns: NDArray[Any], labels: NDArray[Any], width: int) -> MLPClassifier:
    return MLPClassifier((2 * width, width // 2), max_iter=40, early_stopping=False, random_state=0, tol=0.0).fit(
        columns, labels
    )


def _outputs(model: MLPClassifier, columns: NDArray[Any], labels: NDArray[Any]) -> ModelOutputs:
    """Logits and the last hidden layer of a network of scikit-learn."""
    hidden = columns
    for weights, bias in zip(model.coefs_[:-1], model.intercepts_[:-1], strict=True):
        hidden = np.maximum(hidden @ weights + bias, 0.0)
    return ModelOutputs(hidden @ model.coefs_[-1] + model.intercepts_[-1], embeddings=hidden, labels=labels)


def corruptions() -> dict[str, Callable[[Images, int, np.random.Generator], Images]]:
    """Corruptions of images (n, h, w) in [0, 1] by strength 1, 2 or 3, in units of the image's side."""
    return {
        "noise": lambda x, s, rng: x + rng.normal(0, 0.12 * s, x.shape),
        "salt": lambda x, s, rng: np.where(rng.random(x.shape) < 0.06 * s, rng.integers(0, 2, x.shape), x),
        "blur": lambda x, s, rng: ndimage.gaussian_filter(x, (0, x.shape[1] * 0.03 * s, x.shape[1] * 0.03 * s)),
        "shift": lambda x, s, rng: ndimage.shift(x, (0, 0, x.shape[1] * 0.05 * s), order=1),
        "turn": lambda x, s, rng: ndimage.rotate(x, 10 * s, axes=(1, 2), reshape=False, order=1),
        "contrast": lambda x, s, rng: 0.5 + (x - 0.5) * (1 - 0.25 * s),
        "bright": lambda x, s, rng: x + 0.12 * s,
        "patch": _patched,
    }


def _patched(images: Images, strength: int, rng: np.random.Generator) -> Images:
    """A grey square over each image, at a place of its own."""
    side = images.shape[1]
    size = max(1, round(side * 0.12 * (strength + 1)))
    top, left = rng.integers(0, side - size + 1, (2, len(images)))
    line = np.arange(side)
    rows = (line >= top[:, None]) & (line < top[:, None] + size)
    columns = (line >= left[:, None]) & (line < left[:, None] + size)
    return np.where(rows[:, :, None] & columns[:, None, :], 0.5, images)


def _news(file: Path) -> list[tuple[int, str]]:
    with open(file, newline="", encoding="utf-8") as stream:
        return [(int(row[0]) - 1, f"{row[1]} {row[2]}") for row in csv.reader(stream) if row[0].isdigit()]


def _questions(folder: Path) -> list[tuple[int, str]]:
    lines = [line for name in ("train.txt", "test.txt") for line in (folder / name).read_text("latin-1").splitlines()]
    parts = [line.partition(" ")[::2] for line in lines if ":" in line.partition(" ")[0]]
    names = sorted({kind.partition(":")[0] for kind, _ in parts})
    return [(names.index(kind.partition(":")[0]), text) for kind, text in parts]


def _banking(folder: Path) -> list[tuple[int, str]]:
    rows = []
    for name in ("train.csv", "test.csv"):
        with open(folder / name, newline="", encoding="utf-8") as stream:
            rows += [(row["category"], row["text"]) for row in csv.DictReader(stream) if row["category"]]
    names = sorted({kind for kind, _ in rows})
    return [(names.index(kind), text) for kind, text in rows]


def _emotions(folder: Path) -> list[tuple[int, str]]:
    rows: list[tuple[int, str]] = []
    for part in ("train", "val", "test"):
        labels, texts = ((folder / f"{part}_{kind}.txt").read_text("utf-8").split("\n") for kind in ("labels", "text"))
        rows += [(int(label), text) for label, text in zip(labels, texts, strict=False) if label]
    return rows


def _domains(folder: Path) -> list[tuple[int, str]]:
    """Questions of 150 intents as those of the ten domains that the intents belong to."""
    domains = json.loads((folder / "domains.json").read_text("utf-8"))
    place = {intent: number for number, name in enumerate(sorted(domains)) for intent in domains[name]}
    parts = json.loads((folder / "data_oos_plus.json").read_text("utf-8"))
    rows = [row for name in ("train", "val", "test") for row in parts[name]]
    return [(place[intent], text) for text, intent in rows]


def _text_bed(name: str, table: list[tuple[int, str]], *, n_train: int, n_held_out: int) -> Bed:
    rng = np.random.default_rng(0)
    table = [table[place] for place in rng.permutation(len(table))[: n_train + n_held_out + MOST_NEW]]
    labels, texts = np.array([label for label, _ in table]), [text for _, text in table]
    words = TfidfVectorizer(min_df=2, sublinear_tf=True, ngram_range=(1, 2)).fit(texts[:n_train])
    topics = TruncatedSVD(100, random_state=0).fit(words.transform(texts[:n_train]))

    def columns(part: list[str]) -> NDArray[Any]:
        return 10 * topics.transform(words.transform(part))

    model = _trained(columns(texts[:n_train]), labels[:n_train], 64)
    end = n_train + n_held_out
    parts = [slice(0, n_train), slice(n_train, end), slice(end, None)]
    train, held_out, new = (_outputs(model, columns(texts[part]), labels[part]) for part in parts)
    corrupted = {"none": new}
    for kind, corrupt in _text_corruptions(texts[:n_train]).items():
        for strength in STRENGTHS:
            changed = [corrupt(text.split(), strength, rng) for text in texts[end:]]
            corrupted[f"{kind} {strength}"] = _outputs(model, columns(changed), labels[end:])
    return Bed(name, train, held_out, corrupted)


def _text_corruptions(others: list[str]) -> dict[str, Callable[[list[str], int, np.random.Generator], str]]:
    """Corruptions of a list of words by strength 1, 2 or 3."""
    pool = " ".join(others).split()
    footer, banner = others[0].split() + others[1].split(), others[2].split() + others[3].split()  # the same on each

    def typed(words: list[str], strength: int, rng: np.random.Generator) -> str:
        letters = list(" ".join(words))
        for place in np.flatnonzero(rng.random(len(letters)) < 0.04 * strength):
            letters[place] = chr(97 + rng.integers(26))
        return "".join(letters)

    def mixed(words: list[str], strength: int, rng: np.random.Generator) -> str:
        swap = rng.random(len(words)) < 0.15 * strength
        return " ".join(pool[rng.integers(len(pool))] if s else w for w, s in zip(words, swap, strict=True))

    return {
        "dropped": lambda w, s, rng: " ".join(word for word in w if rng.random() > 0.22 * s),
        "cut": lambda w, s, rng: " ".join(w[: max(3, round(len(w) * (1 - 0.27 * s)))]),
        "typos": typed,
        "mixed": mixed,
        "padded": lambda w, s, rng: " ".join(w + [pool[rng.integers(len(pool))] for _ in range(8 * s)]),
        "footer": lambda w, s, rng: " ".join([*w, *footer[: 12 * s]]),
        "banner": lambda w, s, rng: " ".join([*banner[: 12 * s], *w]),
        "joined": lambda w, s, rng: "".join(word + " " * (rng.random() > 0.25 * s) for word in w),
    }


def _letters(file: Path) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    with open(file, newline="", encoding="utf-8") as stream:
        rows = [row for row in csv.reader(stream) if len(row[0]) == 1]
    return np.array([row[1:] for row in rows], np.float64), np.array([ord(row[0]) - 65 for row in rows])


def _pens(file: Path) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    with open(file, newline="", encoding="utf-8") as stream:
        rows = np.array([[float(value) for value in row] for row in csv.reader(stream) if row])
    return rows[:, :-1], rows[:, -1].astype(np.intp)


def _table_bed(
    name: str, columns: NDArray[np.float64], labels: NDArray[np.intp], *, n_train: int, n_held_out: int
) -> Bed:
    """A network on standardised columns (n, d): 0 is the training mean of each."""
    rng = np.random.default_rng(0)
    order = rng.permutation(len(columns))[: n_train + n_held_out + MOST_NEW]
    columns, labels = columns[order], labels[order]
    columns = (columns - columns[:n_train].mean(axis=0)) / columns[:n_train].std(axis=0)
    train, held_out, new = np.split(np.arange(len(columns)), [n_train, n_train + n_held_out])
    model = _trained(columns[train], labels[train], 100)
    corrupted = {"none": _outputs(model, columns[new], labels[new])}
    for kind, corrupt in _table_corruptions().items():
        for strength in STRENGTHS:
            corrupted[f"{kind} {strength}"] = _outputs(model, corrupt(columns[new], strength, rng), labels[new])
    first, second = (_outputs(model, columns[rows], labels[rows]) for rows in (train, held_out))
    return Bed(name, first, second, corrupted)


def _table_corruptions() -> dict[str, Callable[[Images, int, np.random.Generator], Images]]:
    """Corruptions of standardised columns (n, d) by strength 1, 2 or 3."""

    def swapped(x: Images, strength: int, rng: np.random.Generator) -> Images:
        places = np.arange(x.shape[1])
        places[: 2 * strength] = places[: 2 * strength].reshape(-1, 2)[:, ::-1].ravel()
        return np.where(rng.random((len(x), 1)) < 0.5, x[:, places], x)

    return {
        "noise": lambda x, s, rng: x + rng.normal(0, 0.25 * s, x.shape),
        "missing": lambda x, s, rng: np.where(rng.random(x.shape) < 0.08 * s, 0.0, x),
        "stuck": lambda x, s, rng: np.where(np.arange(x.shape[1]) < s, 0.0, x),
        "offset": lambda x, s, rng: x + 0.5 * s * (np.arange(x.shape[1]) % 5 == 0),
        "gain": lambda x, s, rng: x * (1 + 0.2 * s),
        "clipped": lambda x, s, rng: np.clip(x, 0.3 * s - 2.0, 2.0 - 0.3 * s),
        "swapped": swapped,
        "mixed": lambda x, s, rng: np.where(rng.random(x.shape) < 0.06 * s, rng.permutation(x), x),
    }
