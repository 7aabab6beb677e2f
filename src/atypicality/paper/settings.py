"""The paper's experiments as data: which model on which data set, where its outputs are, what is run and shown."""

from dataclasses import dataclass
from fnmatch import fnmatch
from typing import NamedTuple

from atypicality.paper.released import SETS

__all__ = ["CLASSES", "EXPERIMENTS", "SEEDS", "SETTINGS", "SHOWN", "Experiment", "Match", "Setting", "match_folder"]

SEEDS = tuple(range(10))  # the paper's seeds (appendix C)


@dataclass(frozen=True)
class Setting:
    """One model on one data set, as the paper's tables spell them, and the name of the folder of its outputs."""

    kind: str  # "balanced", "imbalanced", "llm" or "skin"
    dataset: str
    model: str
    folder: str
    others: str  # patterns of folders with another model on the same data, shown beside the paper's rows
    weights: str  # how the paper got the model
    validation: bool = False  # whether it calibrates on a validation split, not on halves of the test set


_TORCHVISION = "torchvision's weights"
_DDU = "the weights of Mukhoti et al. 2020, or your own training"
_MISLAS = "the weights of Zhong et al. 2021 (github.com/dvlab-research/MiSLAS)"
_ALPACA = "Alpaca-7B, or any language model: `atypicality llm classify --template {}` writes both files"
_lt = "ImageNet weights finetuned on the long-tailed data (scripts/train_cifar_lt.py --dataset cifar{})".format
_probe = (
    "ImageNet weights, a probe trained on Fitzpatrick17k (scripts/train_fitzpatrick_probe.py --model resnet{})".format
)

SETTINGS = (
    Setting("balanced", "ImageNet", "ResNet18", "imagenet-resnet18", "", _TORCHVISION),
    Setting("balanced", "ImageNet", "ResNet50", "imagenet-resnet50", "", _TORCHVISION),
    Setting("balanced", "ImageNet", "ResNet152", "imagenet-resnet152", "", _TORCHVISION),
    Setting("balanced", "CIFAR10", "WideResNet28", "cifar10-wrn28-10", "cifar10-*", _DDU),
    Setting("balanced", "CIFAR100", "WideResNet28", "cifar100-wrn28-10", "cifar100-*", _DDU),
    Setting("balanced", "MNLI", "RoBERTa", "mnli-roberta", "mnli-*", "roberta-large-mnli on the Hugging Face hub"),
    Setting("imbalanced", "ImageNet-LT", "ResNext50", "imagenetlt-resnext50", "", _MISLAS, True),
    Setting("imbalanced", "ImageNet-LT", "ResNext50(+P.B.)", "imagenetlt-resnext50-pb", "", _MISLAS, True),
    Setting("imbalanced", "Places365-LT", "ResNet152", "places365lt-resnet152", "places365lt-*", _MISLAS, True),
    Setting("imbalanced", "CIFAR10-LT", "ResNet18", "cifar10lt-resnet18", "cifar10lt-* cifar10-lt*", _lt(10), True),
    Setting(
        "imbalanced", "CIFAR100-LT", "ResNet18", "cifar100lt-resnet18", "cifar100lt-* cifar100-lt*", _lt(100), True
    ),
    Setting("llm", "TREC", "Alpaca7B", "trec-alpaca7b", "trec trec-*", _ALPACA.format("trec"), True),
    Setting("llm", "AG News", "Alpaca7B", "agnews-alpaca7b", "agnews agnews-*", _ALPACA.format("agnews"), True),
    Setting("llm", "IMDB", "Alpaca7B", "imdb-alpaca7b", "imdb imdb-*", _ALPACA.format("imdb")),
    Setting(
        "skin",
        "Fitzpatrick17k",
        "ResNet18",
        "fitzpatrick17k-resnet18",
        "fitzpatrick17k-* fitzpatrick*",
        _probe(18),
        True,
    ),
    Setting("skin", "Fitzpatrick17k", "ResNet34", "fitzpatrick17k-resnet34", "", _probe(34), True),
)
CLASSES = {
    "ImageNet": 1000, "CIFAR10": 10, "CIFAR100": 100, "MNLI": 3, "ImageNet-LT": 1000, "Places365-LT": 365,
    "CIFAR10-LT": 10, "CIFAR100-LT": 100, "TREC": 6, "AG News": 4, "IMDB": 2, "Fitzpatrick17k": 9,
}  # fmt: skip
"""How many classes the paper's data sets have."""


@dataclass(frozen=True)
class Experiment:
    """What is run on the outputs of some kinds of settings, and what of it is shown."""

    title: str
    kinds: tuple[str, ...]  # of settings that the paper shows; none for simulations
    methods: tuple[str, ...]  # by their names in `atypicality.compare`; a command can add to them
    estimators: tuple[str, ...] = ("GMM",)  # also "KNN"; of a language model "total" and "per token" likelihoods
    n_groups: int = 5
    claims: tuple[int, ...] = ()  # those of `atypicality.paper.claims` that it can judge
    datasets: tuple[str, ...] = ()  # the only ones that the paper shows, where it does not show all of a kind
    shown: str = ""  # where in the paper


_RECALIBRATION = ("uncalibrated", "ts", "adats", "aar")

EXPERIMENTS = {
    "balanced": Experiment(
        "Recalibration, balanced classes: by input atypicality",
        ("balanced",),
        _RECALIBRATION,
        ("GMM", "KNN"),
        claims=(1, 2, 4),
        shown="Figures 2 (b) and 3 (a), Figures 7 and 13 (a) for KNN, Table 1; claim 2: Figures 2 (a) and 6",
    ),
    "imbalanced": Experiment(
        "Recalibration, long-tailed classes: by class atypicality",
        ("imbalanced",),
        _RECALIBRATION,
        ("GMM", "KNN"),
        claims=(1, 2, 4, 5),
        shown="Figures 2 (c) and 3 (b), Figure 13 (b) for KNN, Table 2; claim 2: Figure 15",
    ),
    "llm": Experiment(
        "Language models: by prompt atypicality",
        ("llm",),
        ("uncalibrated", "content-free", "ts", "aar"),
        ("total", "per token"),
        n_groups=4,
        claims=(1, 6),
        shown="Figures 2 (d) and 3 (c), Table 3",
    ),
    "conformal": Experiment(
        "Prediction sets: by confidence and input atypicality",
        ("balanced",),
        SETS,
        claims=(8,),
        datasets=("ImageNet",),
        shown="section 5, Figures 5, 8, 9 and 12 (95 %), Table 4; rows with 'all' are the figures by one of the two",
    ),
    "subgroups": Experiment(
        "Subgroups: a temperature per group against AAR without group labels",
        ("skin",),
        ("uncalibrated", "ts", "group-ts", "vector", "aar"),  # vector scaling sees no atypicality: a control
        claims=(7,),
        shown="section 4.3, Figure 4",
    ),
    "temperatures": Experiment(
        "The temperature fitted per quantile of input atypicality",
        ("balanced",),
        ("uncalibrated",),
        claims=(3,),
        shown="Figure 10",
    ),
    "class-scores": Experiment(
        "Class scores S_y against class atypicality", ("imbalanced",), ("aar",), claims=(5,), shown="Figure 11"
    ),
    "theory": Experiment(
        "The two theorems, simulated",
        (),
        (),
        ("",),
        claims=(9,),
        shown="Theorem 3.1 (theorem_1 here) and theorem G.2 (theorem_2)",
    ),
}
"""Experiments by the name of their command."""
SHOWN = EXPERIMENTS | {
    "answers": Experiment(
        "Answers of language models: by prompt atypicality",
        (),
        (),
        n_groups=4,
        claims=(1, 6),
        shown="nowhere; its outlook is generation",
    )
}
"""With the one on answers, which has files of another kind and runs by itself."""


class Match(NamedTuple):
    """The paper's setting that a folder of outputs belongs to, and the name of the model in it."""

    setting: Setting
    model: str


def match_folder(name: str) -> Match | None:
    """What a folder of that name holds; None for data that the paper does not have. The longest pattern decides.

    >>> match_folder("cifar10lt-wrn28-4").setting.dataset, match_folder("cifar10lt-wrn28-4").model
    ('CIFAR10-LT', 'wrn28-4')
    """
    for setting in SETTINGS:
        if setting.folder == name:
            return Match(setting, setting.model)
    near = [(pattern, setting) for setting in SETTINGS for pattern in setting.others.split() if fnmatch(name, pattern)]
    if not near:
        return None
    pattern, setting = max(near, key=lambda pair: len(pair[0]))
    return Match(setting, name.removeprefix(pattern.rstrip("*")).strip("-") or "another model")
