"""Where outputs come from: the bundled ones, or folders on disk, each with the paper's setting that it belongs to.

A folder holds `test` (logits, embeddings, labels), `train` (embeddings, labels) or `train_statistics.npz` (counts,
means, covariance of the classes), and where there is a validation split `calibration`. Parts are .npz, .safetensors or
.parquet files, or folders as `collect` writes them. Language models need `test` with atypicality, and for the
content-free baseline `content_free.npz`, logits of prompts without content; instead of a folder, files NAME.npz and
NAME.content_free.npz will do: `atypicality llm` writes them. Where the model was trained anew for every seed, folders
`split-0`, `split-1`, ... hold the parts.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.datasets import Splits, load_fashion_mnist, load_fashion_mnist_lt
from atypicality.density import ClassAtypicality, GaussianAtypicality, NeighborAtypicality
from atypicality.outputs import ModelOutputs
from atypicality.outputs.files import read_arrays
from atypicality.paper.settings import CLASSES, EXPERIMENTS, SETTINGS, Experiment, Setting, match_folder
from atypicality.terminal import listed

__all__ = ["Data", "Source", "content_free_path", "find_sources", "is_one_model", "missing", "of_dataset", "plain_name"]

CONTENT_FREE = ".content_free"
ENDINGS = (".npz", ".safetensors", ".parquet", "")
GIVEN = "given"  # the estimator of outputs that bring their own atypicality, and of which no other can be estimated
IMBALANCE = 2.0
"""Training classes of unknown data count as long-tailed when the largest is more than this many times the smallest."""
KINDS = {
    "balanced": "its training classes count as balanced",
    "imbalanced": "its training classes count as long-tailed",
    "llm": "it is a language model",
    "skin": "its rows have skin tones",
}


@dataclass(frozen=True)
class Data:
    """All that is known of one model on one data set; what nobody gave is None."""

    test: ModelOutputs
    calibration: ModelOutputs | None = None
    train: ModelOutputs | None = None
    statistics: Mapping[str, NDArray[Any]] | None = None
    content_free: NDArray[Any] | None = None

    def density(self, estimator: str) -> Any:
        """A fitted density by the paper's name for it, or an error that says what is missing."""
        if estimator == "GMM" and self.statistics is not None:
            parts = (self.statistics[name] for name in ("counts", "means", "covariance"))
            return GaussianAtypicality.from_statistics(*parts)
        if self.train is None:
            raise ValueError(f"{estimator} needs the training rows: add train.npz with embeddings and labels.")
        if estimator == "GMM":
            return GaussianAtypicality().fit(*self.train.need("embeddings", "labels"))
        return NeighborAtypicality().fit(self.train.need("embeddings"))

    def atypicality(self, part: ModelOutputs, estimator: str) -> NDArray[np.float64] | None:
        """What a part brings: its own atypicality, or a likelihood of its prompts, total where it does not say."""
        kind, stated = estimator.replace(" ", "_"), part.attributes.get("atypicality_kind")
        own = estimator == GIVEN or kind == ("total" if stated is None else str(stated[0]))
        found = part.atypicality if own else part.attributes.get(f"atypicality_{kind}")
        return None if found is None else np.asarray(found, np.float64)

    def has(self, estimator: str) -> bool:
        """Whether an estimator can be used."""
        if estimator == "GMM" and self.statistics is not None:
            return True
        if estimator in ("GMM", "KNN"):
            return self.train is not None and self.test.embeddings is not None
        parts = [part for part in (self.test, self.calibration) if part is not None]
        return all(self.atypicality(part, estimator) is not None for part in parts)

    def subgroup_attribute(self) -> str | None:
        """The first attribute that names groups, not numbers."""
        return next((name for name, values in self.test.attributes.items() if values.dtype.kind != "f"), None)

    def train_labels(self) -> NDArray[np.intp] | None:
        """Labels of all training rows, from their counts where those are known."""
        if self.statistics is not None:
            counts = self.statistics["counts"].astype(np.intp)
            return np.repeat(np.arange(counts.size), counts)
        return None if self.train is None else self.train.labels

    def class_atypicality(self) -> NDArray[np.float64] | None:
        """Of every class (k,), from the training labels."""
        labels, n_classes = self.train_labels(), self.test.n_classes
        if labels is None or n_classes is None:
            return self.test.class_atypicality
        return np.asarray(ClassAtypicality().fit(labels).atypicality(np.arange(n_classes)))

    @cached_property
    def fingerprint(self) -> str:
        """A short hash of everything here."""
        digest = hashlib.sha256()
        for part in (self.test, self.calibration, self.train):
            digest.update((part.fingerprint() if part is not None else "-").encode())
        for array in [*(self.statistics or {}).values(), *([] if self.content_free is None else [self.content_free])]:
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Source:
    """One model on one data set, and where its outputs are. `folder` is None for bundled ones.

    `splits` are the sources of single seeds, where every seed has a model of its own. `fitted` keeps methods by what
    they were fitted with, `names` are the files' names of our arrays.
    """

    name: str
    kind: str
    dataset: str
    model: str
    setting: Setting | None = None
    folder: Path | None = None
    splits: tuple["Source", ...] = ()
    names: tuple[tuple[str, str], ...] = ()
    fitted: dict[tuple[Any, ...], Any] = field(default_factory=dict, repr=False, compare=False)
    _loaded: list[Data] = field(default_factory=list, repr=False, compare=False)

    @property
    def title(self) -> str:
        """Model and data set, and the paper's model where it is another one."""
        other = self.setting is not None and self.setting.folder != self.name
        return f"{self.model} / {self.dataset}" + (f" (paper: {self.setting.model})" if other and self.setting else "")

    @property
    def data(self) -> Data:
        """The outputs, read at the first use and kept; of several splits those of the first."""
        if self.splits:
            return self.splits[0].data
        if not self._loaded:
            self._loaded.append(_bundled(self.name) if self.folder is None else _read(self.folder, dict(self.names)))
        return self._loaded[0]

    def estimators(self, wanted: Iterable[str]) -> tuple[str, ...]:
        """Those of the estimators that these outputs allow; their own atypicality where they allow none."""
        found = tuple(name for name in wanted if self.data.has(name))
        return found or ((GIVEN,) if self.kind != "llm" and self.data.has(GIVEN) else ())

    def lacks(self, wanted: Iterable[str]) -> str | None:
        """What to add for the estimators that cannot be used; None where nothing is missing."""
        out = [name for name in wanted if not self.data.has(name)]
        return f"{self.title}, {' and '.join(out)}: {self._remedy()}." if out else None

    def _remedy(self) -> str:
        if self.kind == "llm":
            return f"{self.folder} has no such likelihood of its prompts; `atypicality llm` writes them"
        files = "train.npz (embeddings, labels)" + ", and embeddings" * (self.data.test.embeddings is None)
        if self.folder is not None and _is_file(self.folder):
            return f"put {self.folder} as test.npz into a folder with {files}"
        return f"put {files} into {self.folder}"

    def serves(self, experiment: str, setting: Experiment) -> bool:
        """Whether an experiment can use these outputs; subgroups need an attribute, the others their kind."""
        if experiment == "subgroups":
            return self.kind == "skin" or (self.kind != "llm" and self.data.subgroup_attribute() is not None)
        return self.kind in setting.kinds

    def left_out(self, experiment: str) -> str:
        """Why an experiment does not use these outputs, and which experiments do."""
        no_groups = experiment == "subgroups" and self.kind != "llm"
        why = "it has no attribute that names groups" if no_groups else KINDS[self.kind]
        others = [name for name, setting in EXPERIMENTS.items() if self.serves(name, setting)]
        return f"{self.title} is not run here: {why}. It takes part in: {listed(others)}."

    def other_classes(self) -> str | None:
        """What to know of outputs that have more or fewer classes than the paper's data set; None where they agree."""
        expected, n_classes = CLASSES.get(self.dataset), self.data.test.n_classes
        if self.setting is None or expected in (None, n_classes):
            return None
        return f"{self.title}: {n_classes} classes; {self.dataset} has {expected}: not comparable with the paper's row"


def find_sources(outputs: Path | None, names: Mapping[str, str] | None = None) -> list[Source]:
    """Every model whose outputs are in a folder, which may be one model's own, or a file; the bundled ones without.

    `names` are the files' names of our arrays, where they differ, as in `ModelOutputs.load`.
    """
    if outputs is None:
        return [
            Source("fashion-mnist", "balanced", "Fashion-MNIST", "small CNN"),
            Source("fashion-mnist-lt", "imbalanced", "Fashion-MNIST-LT", "small CNN"),
        ]
    known = tuple(sorted((names or {}).items()))
    if is_one_model(outputs):
        return [_source(outputs.resolve(), known)]
    if not outputs.is_dir():
        raise ValueError(f"outputs must be a folder or a file of outputs; {str(outputs)!r} is neither.")
    shown = [path for path in sorted(outputs.iterdir()) if not path.name.startswith(".")]
    found = [path for path in shown if _is_file(path) or _is_model(path)]
    if not found:
        raise ValueError(
            f"outputs must hold a folder per model, each with test.npz and train.npz; {str(outputs)!r} has none. "
            f"Name them like {SETTINGS[3].folder} or {SETTINGS[0].folder}."
        )
    return [_source(path, known) for path in found]


def content_free_path(outputs: Path) -> Path:
    """Where the logits of prompts without content belong that go with a file of outputs.

    >>> str(content_free_path(Path("trec.npz"))), str(content_free_path(Path("test.npz")))
    ('trec.content_free.npz', 'content_free.npz')
    """
    parts = outputs.stem in Splits._fields
    return outputs.with_name("content_free.npz" if parts else f"{outputs.stem}{CONTENT_FREE}.npz")


def is_one_model(outputs: Path | None) -> bool:
    """Whether a path is a file of outputs or one model's own folder, not a folder of models."""
    return outputs is not None and (_is_file(outputs) or _is_model(outputs))


def of_dataset(source: Source, dataset: str) -> Source:
    """The same outputs as those of a data set that their name does not tell: the paper's of that name, or another."""
    same = [setting for setting in SETTINGS if plain_name(setting.dataset) == plain_name(dataset)]
    if not same:
        return replace(source, dataset=dataset)
    return replace(source, kind=same[0].kind, dataset=same[0].dataset, setting=same[0])


def plain_name(name: str) -> str:
    """In small letters, without hyphens and spaces, so that CIFAR-10 is cifar10.

    >>> plain_name("CIFAR-10")
    'cifar10'
    """
    return name.lower().replace("-", "").replace(" ", "")


def missing(experiment: Experiment, settings: Iterable[Setting], sources: list[Source], root: Path | None) -> list[str]:
    """For every one of these settings that an experiment needs and that has no outputs: what to put where."""
    have = {source.setting for source in sources}
    beside = root is not None and is_one_model(root)
    place = "DIR" if root is None else root.parent if beside else root
    given = "" if root and not beside else f" and pass --outputs {place}"
    return [
        f"{setting.model} / {setting.dataset}: put {_files(setting)} into {place}/{setting.folder}/{given}. "
        f"Model: {setting.weights}."
        for setting in settings
        if setting.kind in experiment.kinds
        and setting not in have
        and (not experiment.datasets or setting.dataset in experiment.datasets)
    ]


def _files(setting: Setting) -> str:
    if setting.kind == "llm":
        files = "test.npz (logits, labels, atypicality) and content_free.npz (logits)"
    else:
        skin = ", attribute.skin_tone" if setting.kind == "skin" else ""
        files = f"train.npz (embeddings, labels) and test.npz (logits, embeddings, labels{skin})"
    files += ", and calibration.npz like test.npz for the validation split," if setting.validation else ""
    return files + (" in folders split-0, split-1, ... of one random split each," if setting.kind == "skin" else "")


def _source(path: Path, names: tuple[tuple[str, str], ...]) -> Source:
    name = path.stem if _is_file(path) else path.name
    match = match_folder(name)
    if match is None:
        plain = Source(name, "", name, "your model", folder=path, splits=_splits(path, names), names=names)
        return replace(plain, kind=_kind(plain.data))
    setting, model = match
    return Source(name, setting.kind, setting.dataset, model, setting, path, _splits(path, names), names)


def _splits(path: Path, names: tuple[tuple[str, str], ...]) -> tuple[Source, ...]:
    """Sources of single seeds, in the order of their numbers."""
    folders = sorted(path.glob("split-*"), key=lambda folder: (len(folder.name), folder.name))
    return tuple(Source(f"{path.name}-{folder.name}", "", "", "", folder=folder, names=names) for folder in folders)


def _is_model(path: Path) -> bool:
    return any(_part(folder, "test") is not None for folder in [path, *path.glob("split-*")])


def _is_file(path: Path) -> bool:
    """Outputs by themselves: a file, or a folder of arrays."""
    known = path.suffix.lower() in ENDINGS[:-1] if path.is_file() else any(path.glob("*.npy"))
    return known and not path.stem.endswith(CONTENT_FREE)


def _kind(data: Data) -> str:
    """Of unknown data: a language model only where the file says so; balanced where no training labels tell."""
    labels = data.train_labels()
    if "atypicality_kind" in data.test.attributes or data.content_free is not None:
        return "llm"
    if labels is None:
        return "balanced"
    counts = np.bincount(labels)
    return "imbalanced" if counts.max() > IMBALANCE * counts.min() else "balanced"


def _part(folder: Path, name: str) -> Path | None:
    return next((path for ending in ENDINGS if (path := folder / f"{name}{ending}").exists()), None)


def _read(path: Path, names: Mapping[str, str]) -> Data:
    if _is_file(path):
        return Data(_load(path, names), content_free=_logits(content_free_path(path)))
    parts = {name: _load(file, names) for name in reversed(Splits._fields) if (file := _part(path, name)) is not None}
    classes = parts["test"].class_names if "test" in parts else None
    parts = {name: part.with_classes(classes, whose="those of the test outputs") for name, part in parts.items()}
    statistics = path / "train_statistics.npz"
    return Data(
        **parts,
        statistics=read_arrays(statistics) if statistics.exists() else None,
        content_free=_logits(path / "content_free.npz"),
    )


def _load(path: Path, names: Mapping[str, str]) -> ModelOutputs:
    """Outputs whose arrays may have other names; a training file need not have all of them."""
    held = set(read_arrays(path)) if names else set()
    if names and path.stem != "train" and (absent := set(names.values()) - held):
        raise ValueError(f"names: {path.name!r} has no array {sorted(absent)[0]!r}; it has: {listed(sorted(held))}.")
    return ModelOutputs.load(path, names={ours: theirs for ours, theirs in names.items() if theirs in held})


def _logits(path: Path) -> NDArray[Any] | None:
    return np.asarray(ModelOutputs.load(path).need("logits")) if path.exists() else None


def _bundled(name: str) -> Data:
    """Both halves of the test images as one: the paper draws its halves of the test set anew for every seed."""
    train, calibration, test = load_fashion_mnist_lt() if name.endswith("-lt") else load_fashion_mnist()
    pair = (calibration, test)
    joined = {name: np.concatenate([part.need(name) for part in pair]) for name in ("logits", "embeddings", "labels")}
    attributes = {name: np.concatenate([part.attributes[name] for part in pair]) for name in test.attributes}
    return Data(ModelOutputs(**joined, attributes=attributes, class_names=test.class_names), train=train)
