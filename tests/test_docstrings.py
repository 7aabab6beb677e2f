"""Every public name has a docstring: what it is, its parameters with their types, an example that runs, its source."""

import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from conftest import needs

pytestmark = needs("numpydoc", "torch", "altair", "dask", "distributed")

MODULES = (
    *(
        "atypicality",
        "atypicality.blocks",
        "atypicality.shipping.bundle",
        "atypicality.charts",
        "atypicality.conformal",
    ),
    *(
        "atypicality.conformal.threshold",
        "atypicality.datasets",
        "atypicality.density",
        "atypicality.density.likelihood",
    ),
    *("atypicality.density.distributed", "atypicality.evaluation", "atypicality.integrations.dask"),
    *("atypicality.integrations.sklearn", "atypicality.integrations.torch", "atypicality.llm", "atypicality.metrics"),
    "atypicality.monitoring",
    *("atypicality.recalibration", "atypicality.report", "atypicality.paper.theory"),
)
PASSES = {  # of `blocks`: what passes over rows are made of, for contributors; the example of map_rows stands for all
    *("Buffers", "Workspace", "astype", "block_rows", "concatenate", "empty", "for_rows", "is_large", "map_rows"),
    *("reduce_rows", "row_slices", "seen", "single_threaded_blas", "take_columns", "take_rows", "watched", "watching"),
}
NOT_RUN = {  # no example of these can run everywhere
    **dict.fromkeys(
        [
            *("load_ag_news", "load_cifar10", "load_cifar100", "load_cifar10_lt", "load_cifar100_lt"),
            *("load_fitzpatrick17k", "load_imagenet", "load_imagenet_lt", "load_imagenet_r", "load_imdb", "load_mnli"),
            "load_places365_lt",
        ],
        "reads files that the user has; the example of load_trec, which makes its file, stands for all",
    ),
    "TransformersScorer": "needs a language model; the example is shown as text",
}
SOURCES = ("atypicality.metrics", "atypicality.density", "atypicality.conformal", "atypicality.recalibration")
PLAIN = {  # nobody's formula: what they are is said in their first line
    *("accuracy", "overconfidence", "summary", "set_size", "by_group", "calibration_curve"),
    *("CalibrationCurve", "GroupTable", "ParetoCurve", "RiskCoverage", "WorstCoverage"),
}
SOURCE = re.compile(r"math::|:math:|\b(19|20)\d\d\b|section|appendix|the paper", re.IGNORECASE)
SHOWN = ("Evaluation", "Reliability", "ReliabilityHead")  # every method of theirs has an example of its own
CODES = {
    "GL08": "has no docstring",
    "SS03": "its summary does not end with a period",
    "SS06": "its summary is longer than a line",
    "PR02": "documents parameters that it has not",
    "PR03": "documents parameters in another order",
    "PR04": "has a parameter without a type",
}


@dataclass(frozen=True)
class Name:
    """A public thing and the dotted path to it."""

    path: str
    thing: object
    module: str

    @property
    def short(self):
        return self.path.rpartition(".")[2]

    @property
    def doc(self):
        return inspect.getdoc(self.thing) or ""

    def parameters(self):
        """What a caller may pass; a class is called to be made."""
        if isinstance(self.thing, property):
            return []
        try:
            found = inspect.signature(self.thing).parameters
        except ValueError:  # an exception made of whatever its base takes
            return []
        return [name for name in found if name not in ("self", "cls", "args", "kwargs") and not name.startswith("_")]


def public_names():
    found = {}
    for module in MODULES:
        owner = importlib.import_module(module)
        for name in owner.__all__:
            thing = getattr(owner, name)
            if (inspect.isclass(thing) or inspect.isfunction(thing)) and name not in PASSES:
                known = Name(f"{thing.__module__}.{thing.__qualname__}", thing, module)
                if known.path not in found or module != "atypicality":
                    found[known.path] = known
    return [found[path] for path in sorted(found)]


def methods(known):
    """Public methods and properties that we wrote, inherited ones included, each under its own class."""
    found = {}
    for base in known.thing.__mro__ if inspect.isclass(known.thing) else ():
        if base.__module__.startswith("atypicality"):
            for name, value in vars(base).items():
                thing = value.__func__ if isinstance(value, classmethod | staticmethod) else value
                if not name.startswith("_") and (inspect.isfunction(thing) or isinstance(thing, property)):
                    found.setdefault(name, Name(f"{base.__module__}.{base.__qualname__}.{name}", thing, known.module))
    return list(found.values())


def documented(doc, *sections):
    from numpydoc.docscrape import NumpyDocString

    parsed = NumpyDocString(doc)
    return {part.strip("* ") for section in sections for entry in parsed[section] for part in entry.name.split(",")}


try:
    NAMES = public_names()
except ModuleNotFoundError:  # an optional package is missing: the mark above says which
    NAMES = []
METHODS = {method.path: method for name in NAMES for method in methods(name)}


@pytest.mark.parametrize("known", NAMES, ids=lambda known: known.path)
class TestNames:
    def test_every_parameter_is_documented_in_order_with_its_type(self, known):
        from numpydoc.validate import validate

        parameters = known.parameters()
        wrong = [f"{CODES[code]}: {text}" for code, text in validate(known.path)["errors"] if code in CODES]
        if inspect.isclass(known.thing) and "Attributes\n---" in known.doc:  # a result: its fields are its parameters
            wrong = [text for text in wrong if not text.startswith(CODES["PR02"])]
        assert wrong == []
        missing = set(parameters) - documented(known.doc, "Parameters", "Attributes", "Other Parameters")
        assert missing == set(), "parameters without a word"

    def test_every_array_has_its_shape(self, known):
        from numpydoc.docscrape import NumpyDocString

        entries = [part for name in ("Parameters", "Returns") for part in NumpyDocString(known.doc)[name]]
        arrays = [part for part in entries if re.match(r"(array|ndarray)", part.type) and "list" not in part.type]
        for part in arrays:
            text = part.type + " ".join(part.desc)
            assert re.search(r"shape|\(n|As in|See", text), f"{part.name} : {part.type}"

    def test_it_has_an_example_that_runs(self, known):
        assert (">>>" in known.doc) == (known.short not in NOT_RUN), NOT_RUN.get(known.short, "has no example")

    def test_a_method_of_the_field_names_its_equation_or_source(self, known):
        if known.module in SOURCES and known.short not in PLAIN:
            assert SOURCE.search(known.doc), "names no equation and no source"

    def test_a_function_says_what_it_returns(self, known):
        """A function that gives more than a number says what; loaders give `Images` or `TextSamples`."""
        if inspect.isfunction(known.thing) and known.short not in NOT_RUN:
            plain = inspect.signature(known.thing).return_annotation in (None, float, int, int | None, Iterator[None])
            assert plain or re.search(r"Returns\n---", known.doc), "does not say what it returns"


@pytest.mark.parametrize("known", METHODS.values(), ids=METHODS)
def test_a_method_has_a_summary_and_names_every_parameter(known):
    """A method names every parameter; it may say so in a sentence, as fitting and predicting are alike everywhere."""
    assert known.doc, "has no docstring"
    assert known.doc.splitlines()[0].rstrip().endswith((".", ":")), "its first line is no sentence"
    unnamed = [name for name in known.parameters() if not re.search(rf"\b{re.escape(name.strip('*'))}\b", known.doc)]
    assert [name for name in unnamed if name != "y"] == [], "parameters without a word"
    if known.path.split(".")[-2] in SHOWN:
        assert ">>>" in known.doc, "has no example that runs"


def test_exemptions_are_of_names_that_exist():
    known = {name.short for name in NAMES}
    assert set(NOT_RUN) | PLAIN | set(SHOWN) <= known
