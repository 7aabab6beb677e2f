"""The paper's data sets from folders that the user has, or from Hugging Face `datasets` where that is installed.

Nothing is downloaded by this package itself: without `folder=` the package `datasets` fetches what it knows, and
otherwise the error says what to download and where to put it.
"""

import importlib
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from atypicality.datasets import readers
from atypicality.datasets.readers import Entry
from atypicality.datasets.samples import Images, TextSamples, long_tailed_rows
from atypicality.outputs.paths import check_source
from atypicality.terminal import listed
from atypicality.validation import check_choice

__all__ = [
    "load_ag_news", "load_cifar10", "load_cifar10_lt", "load_cifar100", "load_cifar100_lt", "load_fitzpatrick17k",
    "load_imagenet", "load_imagenet_lt", "load_imagenet_r", "load_imdb", "load_mnli", "load_places365_lt", "load_trec",
]  # fmt: skip

Folder = str | os.PathLike[str] | None


@dataclass(frozen=True)
class Origin:
    """Where a data set is published, what lies in its folder, and its name on the Hugging Face Hub."""

    name: str
    url: str
    holds: str
    hub: tuple[str, ...] = ()
    revision: str | None = None

    def missing(self, folder: Folder, cause: str = "") -> FileNotFoundError:
        """The error that says what to download and where to put it."""
        where = "no folder= was given" if folder is None else f"not found in {os.fspath(folder)!r}"
        other = "; or install the package datasets and leave folder= out" if self.hub else ""
        return FileNotFoundError(
            f"{self.name}: {where}{cause}. Download it from {self.url}, unpack it, and pass folder= the folder that "
            f"holds {self.holds}{other}."
        )

    def find(self, folder: Folder, *choices: str) -> Path:
        """The first of several paths below the folder that exists."""
        if folder is not None:
            for path in (Path(folder) / choice for choice in choices):
                if path.exists():
                    return check_source(path, folder=True)
        raise self.missing(folder)

    def from_hub(self, split: str) -> Any:
        """A split by Hugging Face `datasets`."""
        if not self.hub:
            raise self.missing(None)
        try:
            package = importlib.import_module("datasets")
        except ModuleNotFoundError:
            raise self.missing(None, ", and the package datasets is not installed") from None
        options = {} if self.revision is None else {"revision": self.revision}
        try:
            return package.load_dataset(*self.hub, split=split, **options)
        except Exception as error:  # no network, no access, another version: the package raises almost anything
            raise self.missing(None, f", and datasets could not fetch it ({error})") from error

    def records(self, split: str, columns: Sequence[str], codes: Sequence[str]) -> Iterator[Entry]:
        """Texts of a split by Hugging Face `datasets`; the last of its columns counts the class among the `codes`."""
        data, names = self.from_hub(split), dict(enumerate(codes))
        for *texts, label in zip(*(data[name] for name in columns), strict=True):
            yield Entry(texts[0] if len(texts) == 1 else tuple(texts), names.get(label, str(label)))


TREC = Origin(
    "TREC",
    "https://cogcomp.seas.upenn.edu/Data/QA/QC/",
    "train_5500.label and TREC_10.label",
    ("CogComp/trec",),
    "refs/convert/parquet",
)
AG_NEWS = Origin(
    "AG News", "https://huggingface.co/datasets/fancyzhx/ag_news", "train.csv and test.csv", ("fancyzhx/ag_news",)
)
IMDB = Origin("IMDB", "https://ai.stanford.edu/~amaas/data/sentiment/", "aclImdb", ("stanfordnlp/imdb",))
MNLI = Origin(
    "MNLI", "https://cims.nyu.edu/~sbowman/multinli/", "multinli_1.0_dev_matched.jsonl", ("nyu-mll/glue", "mnli")
)
CIFAR = "https://www.cs.toronto.edu/~kriz/cifar.html (the binary version)"
CIFAR10 = Origin("CIFAR-10", CIFAR, "cifar-10-batches-bin", ("uoft-cs/cifar10",))
CIFAR100 = Origin("CIFAR-100", CIFAR, "cifar-100-binary", ("uoft-cs/cifar100",))
IMAGENET = Origin(
    "ImageNet",
    "https://image-net.org/download-images.php (ILSVRC 2012; sort the validation images into folders by class)",
    "train and val, each with one folder per class (n01440764, ...)",
    ("ILSVRC/imagenet-1k",),
)
IMAGENET_R = Origin("ImageNet-R", "https://github.com/hendrycks/imagenet-r", "imagenet-r")
IMAGENET_LT = Origin("ImageNet-LT", "https://github.com/zhmiao/OpenLongTailRecognition-OLTR", "ImageNet_LT_train.txt")
PLACES_LT = Origin("Places365-LT", "https://github.com/zhmiao/OpenLongTailRecognition-OLTR", "Places_LT_train.txt")
FITZPATRICK = Origin(
    "Fitzpatrick17k",
    "https://github.com/mattgroh/fitzpatrick17k (the table; the images by their URLs)",
    "fitzpatrick17k.csv and a folder images with one MD5HASH.jpg per row",
)


def load_trec(part: str = "test", *, folder: Folder = None) -> TextSamples:
    r"""Questions by the type of their answer, in the paper's six words: 5,452 for training and 500 for testing.

    Parameters
    ----------
    part : {"train", "test"}
    folder : path, optional
        With `train_5500.label` and `TREC_10.label` (or `train.txt` and `test.txt`).

    Returns
    -------
    TextSamples

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "test.txt").write_text("HUM:ind Who was Galileo ?\nLOC:city Where is Aspen ?\n")
    ...     samples = load_trec(folder=folder)
    >>> samples.inputs, [samples.class_names[label] for label in samples.labels]
    (['Who was Galileo ?', 'Where is Aspen ?'], ['Person', 'Location'])
    """
    from atypicality.llm.templates import TREC as TEMPLATE

    check_choice(part, "part", ("train", "test"))
    if folder is None:
        codes = ("ABBR", "ENTY", "DESC", "HUM", "LOC", "NUM")
        records = TREC.records(part, ("text", "coarse_label"), codes)
    else:
        published = {"train": "train_5500.label", "test": "TREC_10.label"}[part]
        records = readers.read_trec(TREC.find(folder, published, f"{part}.txt"))
    return _texts(records, TEMPLATE.labels, TEMPLATE.word)


def load_ag_news(part: str = "test", *, folder: Folder = None) -> TextSamples:
    """News by topic (World, Sports, Business, Technology), title and description joined by a space.

    Parameters
    ----------
    part : {"train", "test"}
    folder : path, optional
        With `train.csv` and `test.csv`.
    """
    from atypicality.llm.templates import AG_NEWS as TEMPLATE

    check_choice(part, "part", ("train", "test"))
    if folder is None:
        records = AG_NEWS.records(part, ("text", "label"), ("1", "2", "3", "4"))
    else:
        records = readers.read_ag_news(AG_NEWS.find(folder, f"{part}.csv"))
    return _texts(records, TEMPLATE.labels, TEMPLATE.word)


def load_imdb(part: str = "test", *, folder: Folder = None) -> TextSamples:
    """Film reviews, Positive or Negative: 25,000 for training and as many for testing.

    Parameters
    ----------
    part : {"train", "test"}
    folder : path, optional
        `aclImdb` or the folder around it.
    """
    from atypicality.llm.templates import IMDB as TEMPLATE

    check_choice(part, "part", ("train", "test"))
    if folder is None:
        records = IMDB.records(part, ("text", "label"), ("0", "1"))
    else:
        records = readers.read_imdb(IMDB.find(folder, f"aclImdb/{part}", part))
    lines = (Entry(record.source.replace("<br />", "\n"), record.label) for record in records)
    return _texts(lines, TEMPLATE.labels, TEMPLATE.word)


def load_mnli(part: str = "validation_matched", *, folder: Folder = None) -> TextSamples:
    """Pairs (premise, hypothesis): entailment, neutral or contradiction, in GLUE's order of classes.

    Some models have another order of columns (roberta-large-mnli: contradiction, neutral, entailment).

    Parameters
    ----------
    part : {"train", "validation_matched", "validation_mismatched"}
    folder : path, optional
        `multinli_1.0`, with its .jsonl files. Rows on which annotators did not agree are left out.
    """
    names = ("entailment", "neutral", "contradiction")
    files = {"train": "train", "validation_matched": "dev_matched", "validation_mismatched": "dev_mismatched"}
    check_choice(part, "part", tuple(files))
    if folder is None:
        records = MNLI.records(part, ("premise", "hypothesis", "label"), names)
    else:
        file = f"multinli_1.0_{files[part]}.jsonl"
        records = readers.read_mnli(MNLI.find(folder, file, f"multinli_1.0/{file}"))
    return _texts(records, names, str)


def load_cifar10(part: str = "test", *, folder: Folder = None) -> Images:
    """CIFAR-10: 50,000 images for training and 10,000 for testing, in 10 classes.

    Parameters
    ----------
    part : {"train", "test"}
    folder : path, optional
        `cifar-10-batches-bin`, the binary version, or the folder around it. The Python version is made of pickles,
        which can run code, and is refused.
    """
    train = [f"data_batch_{number}.bin" for number in range(1, 6)]
    return _cifar(CIFAR10, part, folder, {"train": train, "test": ["test_batch.bin"]}, "batches.meta.txt", 1, "label")


def load_cifar100(part: str = "test", *, folder: Folder = None) -> Images:
    """CIFAR-100 by its 100 fine classes.

    Parameters
    ----------
    part, folder : str, path
        As in `load_cifar10`; the folder is `cifar-100-binary`.
    """
    files = {"train": ["train.bin"], "test": ["test.bin"]}
    return _cifar(CIFAR100, part, folder, files, "fine_label_names.txt", 2, "fine_label")


def load_cifar10_lt(
    part: str = "train", *, folder: Folder = None, imbalance: float = 100.0, random_state: int = 0
) -> Images:
    """CIFAR-10 with a long-tailed training part (see `long_tailed_rows`); the test part stays balanced.

    Parameters
    ----------
    part, folder : str, path
        As in `load_cifar10`.
    imbalance, random_state : float, int
        As in `long_tailed_rows`.
    """
    return _tailed(load_cifar10(part, folder=folder), part, imbalance, random_state)


def load_cifar100_lt(
    part: str = "train", *, folder: Folder = None, imbalance: float = 100.0, random_state: int = 0
) -> Images:
    """CIFAR-100 with a long-tailed training part (see `long_tailed_rows`); the test part stays balanced.

    Parameters
    ----------
    part, folder : str, path
        As in `load_cifar100`.
    imbalance, random_state : float, int
        As in `long_tailed_rows`.
    """
    return _tailed(load_cifar100(part, folder=folder), part, imbalance, random_state)


def load_imagenet(part: str = "val", *, folder: Folder = None) -> Images:
    """ImageNet-1k, classes in the order of their WordNet numbers, which is that of most models' columns.

    Parameters
    ----------
    part : {"train", "val"}
    folder : path, optional
        With a folder for each part, and in it one folder per class.
    """
    check_choice(part, "part", ("train", "val"))
    if folder is None:
        return _hub_images(IMAGENET.from_hub({"train": "train", "val": "validation"}[part]), "image", "label")
    return _class_folders(IMAGENET.find(folder, part), IMAGENET)


def load_imagenet_r(*, folder: Folder = None) -> Images:
    """ImageNet-R: renditions of 200 of the ImageNet classes.

    `class_names` are WordNet numbers: the columns of an ImageNet model for them are those of the same numbers among
    the sorted 1,000.

    Parameters
    ----------
    folder : path
        `imagenet-r` or the folder around it.
    """
    return _class_folders(IMAGENET_R.find(folder, "imagenet-r", "."), IMAGENET_R)


def load_imagenet_lt(part: str = "train", *, folder: Folder = None, images: Folder = None) -> Images:
    """ImageNet-LT: 115,846 training images of 1,000 classes with 5 to 1,280 each; validation and test are balanced.

    Parameters
    ----------
    part : {"train", "val", "test"}
    folder : path
        With the lists `ImageNet_LT_train.txt`, `ImageNet_LT_val.txt`, `ImageNet_LT_test.txt`.
    images : path, optional
        What the lists' paths start from; by default `folder`.
    """
    return _listed(IMAGENET_LT, "ImageNet_LT", part, folder, images, 1000)


def load_places365_lt(part: str = "train", *, folder: Folder = None, images: Folder = None) -> Images:
    """Places365-LT: 62,500 training images of 365 classes with 5 to 4,980 each.

    Parameters
    ----------
    part, folder, images : str, path, path
        As in `load_imagenet_lt`; the lists are `Places_LT_train.txt` and so on.
    """
    return _listed(PLACES_LT, "Places_LT", part, folder, images, 365)


def load_fitzpatrick17k(*, folder: Folder = None) -> Images:
    """Clinical images in nine classes of skin condition, with the attribute `skin_tone`: Unknown, 1-2, 3-4 or 5-6.

    Parameters
    ----------
    folder : path
        With `fitzpatrick17k.csv` and the folder `images`. Rows whose image is not there are left out, with a warning.
    """
    table = FITZPATRICK.find(folder, "fitzpatrick17k.csv")
    rows = list(readers.read_fitzpatrick(table, table.parent / "images"))
    found = [row for row in rows if row.file.is_file()]
    if not found:
        raise FITZPATRICK.missing(folder, ": the table is there, and none of its images")
    if len(found) < len(rows):
        warnings.warn(
            f"{len(rows) - len(found)} of the {len(rows)} images of Fitzpatrick17k are not in "
            f"{str(table.parent / 'images')!r} and are left out.",
            stacklevel=2,
        )
    records = [Entry(row.file, row.label) for row in found]
    names = sorted({row.label for row in rows})
    return _images(records, names, {"skin_tone": np.array([row.tone for row in found])})


def _texts(records: Iterable[Entry], names: Sequence[str], word: Callable[[str], str]) -> TextSamples:
    """Texts with labels in the order of `names`; `word` turns the file's code into a name."""
    place = {name: column for column, name in enumerate(names)}
    kept = list(records)
    unknown = [record.label for record in kept if word(record.label) not in place]
    if unknown:
        raise ValueError(f"labels must be among {listed(names)}; got {unknown[0]!r}.")
    labels = np.array([place[word(record.label)] for record in kept], np.intp)
    return TextSamples([record.source for record in kept], labels, tuple(names))


def _images(records: list[Entry], names: Sequence[str], attributes: dict[str, Any] | None = None) -> Images:
    place = {name: column for column, name in enumerate(names)}
    labels = np.array([place[record.label] for record in records], np.intp)
    return Images([record.source for record in records], labels, tuple(names), attributes or {})


def _class_folders(folder: Path, source: Origin) -> Images:
    records = list(readers.read_class_folders(folder))
    if not records:
        raise source.missing(folder, ": it has no folders of images")
    return _images(records, sorted({record.label for record in records}))


def _listed(source: Origin, name: str, part: str, folder: Folder, images: Folder, n_classes: int) -> Images:
    check_choice(part, "part", ("train", "val", "test"))
    file = source.find(folder, f"{name}_{part}.txt")
    records = list(readers.read_list(file, Path(images) if images is not None else file.parent))
    if outside := [record.label for record in records if int(record.label) >= n_classes]:
        raise ValueError(f"labels of {file.name!r} must lie in 0 .. {n_classes - 1}; got {outside[0]}.")
    return _images(records, [str(label) for label in range(n_classes)])


def _hub_images(data: Any, image: str, label: str) -> Images:
    return Images(_HubColumn(data, image), np.array(data[label], np.intp), tuple(data.features[label].names))


class _HubColumn(Sequence[Any]):
    """One column of a Hugging Face data set, each image decoded when it is asked for."""

    def __init__(self, data: Any, name: str) -> None:
        self.data, self.name = data, name

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, row: Any) -> Any:
        return self.data[row][self.name]

    def take(self, rows: Sequence[int]) -> "_HubColumn":
        """Some rows, still not decoded."""
        return _HubColumn(self.data.select(rows), self.name)


def _cifar(
    source: Origin, part: str, folder: Folder, files: dict[str, list[str]], names: str, n_labels: int, label: str
) -> Images:
    check_choice(part, "part", ("train", "test"))
    if folder is None:
        return _hub_images(source.from_hub(part), "img", label)
    try:
        first = source.find(folder, f"{source.holds}/{files[part][0]}", files[part][0])
    except FileNotFoundError as error:
        if any(Path(folder).glob("**/batches.meta")) or any(Path(folder).glob("cifar-*-py*")):
            raise source.missing(folder, ": it has the Python version, pickles that can run code") from error
        raise
    paths = [first.parent / file for file in [*files[part], names]]
    for path in paths:
        if not path.exists():
            raise source.missing(folder, f": {path.name} is missing")
    images, labels = readers.read_cifar(paths[:-1], n_labels)
    return Images(images, labels, tuple(paths[-1].read_text(encoding="utf-8").split()))


def _tailed(images: Images, part: str, imbalance: float, random_state: int) -> Images:
    if part != "train":
        return images
    return images.take(long_tailed_rows(images.labels, imbalance=imbalance, random_state=random_state))
