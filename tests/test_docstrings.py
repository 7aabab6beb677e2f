"""Laws of docstrings: what a public name is, its parameters with types and shapes, an example that runs, its source."""

import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass

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


def broken(law, names):
    """What breaks a law, by the path of the name: a law is a function of a name that gives the faults it finds."""
    found = {known.path: list(law(known)) for known in names}
    return {path: faults for path, faults in found.items() if faults}


def undocumented(known):
    from numpydoc.validate import validate

    faults = [f"{CODES[code]}: {text}" for code, text in validate(known.path)["errors"] if code in CODES]
    if inspect.isclass(known.thing) and "Attributes\n---" in known.doc:  # a result: its fields are its parameters
        faults = [text for text in faults if not text.startswith(CODES["PR02"])]
    missing = set(known.parameters()) - documented(known.doc, "Parameters", "Attributes", "Other Parameters")
    return [*faults, *(f"parameter without a word: {name}" for name in sorted(missing))]


def shapeless(known):
    from numpydoc.docscrape import NumpyDocString

    entries = [part for name in ("Parameters", "Returns") for part in NumpyDocString(known.doc)[name]]
    arrays = [part for part in entries if re.match(r"(array|ndarray)", part.type) and "list" not in part.type]
    return [part.name for part in arrays if not re.search(r"shape|\(n|As in|See", part.type + " ".join(part.desc))]


def unexplained(known):
    """Of a method: no summary, parameters that it does not name, or no example where every method has its own."""
    if not known.doc.splitlines()[:1] or not known.doc.splitlines()[0].rstrip().endswith((".", ":")):
        yield "its first line is no sentence"
    for name in known.parameters():
        if name != "y" and not re.search(rf"\b{re.escape(name.strip('*'))}\b", known.doc):
            yield f"parameter without a word: {name}"
    if known.path.split(".")[-2] in SHOWN and ">>>" not in known.doc:
        yield "has no example that runs"


def silent_about_its_result(known):
    """A function that gives more than a number says what; loaders give `Images` or `TextSamples`."""
    if not inspect.isfunction(known.thing) or known.short in NOT_RUN:
        return []
    plain = inspect.signature(known.thing).return_annotation in (None, float, int, int | None, Iterator[None])
    return [] if plain or re.search(r"Returns\n---", known.doc) else ["does not say what it returns"]


def test_every_parameter_of_a_public_name_is_documented_in_order_with_its_type():
    assert broken(undocumented, NAMES) == {}


def test_every_array_of_a_public_name_has_its_shape():
    assert broken(shapeless, NAMES) == {}


def test_every_public_name_has_an_example_unless_none_can_run_everywhere():
    assert {known.short for known in NAMES if ">>>" not in known.doc} == set(NOT_RUN)


def test_every_method_of_the_field_names_its_equation_or_source():
    named = [known for known in NAMES if known.module in SOURCES and known.short not in PLAIN]
    assert [known.path for known in named if not SOURCE.search(known.doc)] == []


def test_every_function_that_gives_more_than_a_number_says_what_it_returns():
    assert broken(silent_about_its_result, NAMES) == {}


def test_every_method_has_a_summary_and_names_its_parameters():
    assert broken(unexplained, METHODS.values()) == {}


def test_a_docstring_that_breaks_a_law_is_found():
    def lacking(values, weights):
        """No full stop

        Parameters
        ----------
        values : array-like
        """

    known = Name("atypicality.somewhere.lacking", lacking, "atypicality")
    assert shapeless(known) == ["values"]
    assert silent_about_its_result(known) == ["does not say what it returns"]
    assert list(unexplained(known)) == ["its first line is no sentence", "parameter without a word: weights"]


def test_exemptions_are_of_names_that_exist():
    known = {name.short for name in NAMES}
    assert set(NOT_RUN) | PLAIN | set(SHOWN) <= known
