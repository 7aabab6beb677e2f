"""Files of outputs as commands take them: one or several, with names of arrays and of classes beside them."""

import contextlib
from collections.abc import Container, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

if TYPE_CHECKING:
    from atypicality.llm import Answers
    from atypicality.outputs import ModelOutputs
    from atypicality.outputs.reading import ArrayFile

__all__ = [
    "ANSWERS",
    "ClassNames",
    "Names",
    "Sha256",
    "check_page",
    "file_names",
    "is_answer_head",
    "load_answers",
    "load_correct",
    "load_head",
    "load_outputs",
    "load_rows",
    "load_together",
    "load_with_checked",
    "looks_wrong",
    "parse_names",
    "refuse_answer_head",
]

LOOKED_AT = 1000  # rows that are looked at for a mistake
TEXT_OVERHEAD = 4  # bytes of Python's texts and their places for each of an array
ANSWERS = ".jsonl"  # ending of files of answers

Names = Annotated[
    list[str] | None,
    typer.Option(
        help="Our name of an array and the file's, where they differ: logits=scores,labels=label. For columns "
        "logit_cat, logit_dog, ... it is logits=logit_*, and for files monday_emb.npy, ... embeddings=*_emb. Of "
        "answers, names of fields: prompt=question,scores.judge=judge."
    ),
]
ClassNames = Annotated[
    Path | None,
    typer.Option(help="Names of the classes in the order of the logits' columns: one per line, or one array."),
]
Sha256 = Annotated[
    str | None, typer.Option(help="Take the head with this hash, which `fit` and `show` print, and no other.")
]


def parse_names(texts: list[str] | None) -> dict[str, str]:
    """Pairs of names by our name.

    >>> parse_names(["logits=scores,labels=label", "attribute.site=hospital"])
    {'logits': 'scores', 'labels': 'label', 'attribute.site': 'hospital'}
    """
    found: dict[str, str] = {}
    for pair in (pair.strip() for text in texts or [] for pair in text.split(",")):
        ours, sign, theirs = (part.strip() for part in pair.partition("="))
        if not (ours and sign and theirs):
            raise ValueError(f"--names must be pairs OURS=THEIRS, separated by commas; got {pair!r}.")
        if ours in found:
            raise ValueError(f"--names must give each of our names once; {ours!r} stands there twice.")
        found[ours] = theirs
    return found


def check_page(path: Path) -> None:
    """Refuse, before any work, a path that no HTML page can be written to."""
    from atypicality.outputs.paths import check_target

    check_target(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--out is an HTML page and must end in .html; got {path.name!r}.")


def load_head(folder: Path, sha256: str | None = None) -> Any:
    """The saved head of a classifier, or of answers; with `sha256` no other."""
    from atypicality.shipping.bundle import load, saved_class

    if folder.is_file():
        raise ValueError(
            f"{str(folder)!r} is a file; a saved head is a folder with a head.json. The head comes before the outputs."
        )
    kind = saved_class(folder) if (folder / "head.json").is_file() else None
    if kind == "MonitorState":
        raise ValueError(
            f"{str(folder)!r} holds the state of a monitor, not a head. Give the folder of the head there."
        )
    if kind != "AnswerHead":
        return load(folder, sha256=sha256)
    from atypicality.llm import AnswerHead

    return AnswerHead.load(folder, sha256=sha256)


def is_answer_head(head: Any) -> bool:
    """Whether a head judges answers, without importing what it is made of."""
    return type(head).__name__ == "AnswerHead"


def load_rows(
    head: Any,
    path: Path,
    names: list[str] | None = None,
    class_names: Path | None = None,
    *,
    checked: bool = False,
) -> "ModelOutputs":
    """Outputs of a file for a head; those that an answer head makes of answers, or of `checked` ones alone.

    A name for labels need not be found. Warns of a file without rows, and of ids that stand there twice.
    """
    if is_answer_head(head):
        return head.outputs(load_answers(path, names, class_names, head, checked=checked))  # type: ignore[no-any-return]
    found = load_outputs(path, names, class_names, head, optional=("labels",))
    _warn_of_rows(found, path)
    return found


def load_with_checked(
    head: Any, path: Path, names: list[str] | None = None, class_names: Path | None = None
) -> "tuple[ModelOutputs, ModelOutputs | None]":
    """As `load_rows`; where only some answers are checked, these again, with labels."""
    import numpy as np

    if not is_answer_head(head):
        return load_rows(head, path, names, class_names), None
    answers = load_answers(path, names, class_names, head)
    some, outputs = answers.checked, head.outputs(answers)
    if some.all() or not some.any():
        return outputs, None
    return outputs, outputs[some]._replaced(labels=np.asarray(answers[some].correct, np.intp))


def _warn_of_rows(outputs: "ModelOutputs", path: Path) -> None:
    from atypicality import blocks
    from atypicality.outputs.tables import place_in, repeated
    from atypicality.validation import warn

    if not len(outputs):
        warn(f"{path.name!r} has no rows.")
    if outputs.ids is None or blocks.is_large(TEXT_OVERHEAD * outputs.ids.nbytes):
        return
    if twice := repeated(outputs.ids.astype(str).tolist()):
        name, *rows = twice
        first, second = (place_in(path.name, row) for row in rows)
        warn(
            f"{path.name!r} has the id {name!r} twice, in {first} and {second}: both rows count, and no late label can "
            "be joined to it. Are rows repeated? Give each an id of its own."
        )


def load_answers(
    path: Path,
    names: list[str] | None = None,
    class_names: Path | None = None,
    head: Any = None,
    *,
    checked: bool = False,
) -> "Answers":
    """Answers of a file, with names of its fields; of `checked` ones, those that say whether they are correct.

    Without names, those by which the answers were read that the `head` was fitted on.
    """
    from atypicality.llm import Answers
    from atypicality.llm.answer_records import correct_meant
    from atypicality.llm.answers import only_checked
    from atypicality.llm.texts import read_objects
    from atypicality.validation import caught_warnings

    if path.suffix.lower() != ANSWERS:
        raise ValueError(f"an answer head takes answers in a {ANSWERS} file; got {path.name!r}.")
    if class_names:
        raise ValueError("--class-names is for files of arrays; answers are correct or not. Leave it out.")
    known = parse_names(names) if names or head is None else head.names_
    found = Answers._read(path, known, strict=bool(names))
    if checked and found.correct is None:
        with caught_warnings():
            meant = next(filter(None, read_objects(path, correct_meant)), "")
        raise ValueError(
            f"{path.name!r} must have the field 'correct', true or false, in the lines of answers that were checked; "
            f"it has none.{f' {meant}.' if meant else ''}"
        )
    return only_checked(found) if checked else found


def refuse_answer_head(folder: Path, why: str) -> None:
    """Refuse a saved answer head where it cannot be used, and say what to do instead."""
    from atypicality.shipping.bundle import saved_class

    if (folder / "head.json").is_file() and saved_class(folder) == "AnswerHead":
        raise ValueError(
            f"{str(folder)!r} is an answer head, which {why}. Judge files with `atypicality predict {folder} "
            "answers.jsonl --out said.csv`, or in a service of yours with AnswerHead.load(...).predict(...)."
        )


def load_correct(path: Path, head: Any) -> "ModelOutputs":
    """Late labels of an answer head: columns `ids` (or `id`) and `correct`, or `labels` that name its classes."""
    import numpy as np

    from atypicality.metrics.rows import check_correct
    from atypicality.outputs import ModelOutputs
    from atypicality.outputs.files import read_arrays

    if path.suffix.lower() == ANSWERS or "correct" not in (arrays := read_arrays(path)):
        return load_outputs(path, head=head)
    if (ids := arrays.get("ids", arrays.get("id"))) is None:
        raise ValueError(f"{path.name!r} must have a column ids beside correct, to say which answers these are.")
    given = arrays["correct"]
    if given.dtype.kind in "US":
        words = np.char.lower(given.astype(str))
        if (odd := given[~np.isin(words, ("true", "false"))]).size:
            raise ValueError(f"{path.name!r} must have true or false in the column correct; got {str(odd[0])!r:.40}.")
        given = words == "true"
    return ModelOutputs(labels=check_correct(given, len(ids)).astype(np.intp), ids=ids, class_names=head.class_names_)


def load_outputs(
    path: Path,
    names: list[str] | None = None,
    class_names: Path | None = None,
    head: Any = None,
    *,
    optional: Container[str] = (),
) -> "ModelOutputs":
    """Outputs of a file, or of several whose paths are separated by commas; the `head` names the classes of labels.

    Names that are given must be found there, but for those of `optional` arrays.
    """
    return load_together({"the file": path}, names, class_names, head, optional=optional)["the file"]


def load_together(
    paths: dict[str, Path],
    names: list[str] | None,
    class_names: Path | None,
    head: Any = None,
    *,
    optional: Container[str] = (),
) -> dict[str, "ModelOutputs"]:
    """Outputs of several purposes, by purpose: one list of names serves all, and each name must be found in one.

    Labels that are text, in files that do not name the classes, are classes of the `head`. Arrays that are left out are
    warned of, unless names were given, for a head, and ids are there: then somebody has said what is what.
    """
    from atypicality.head.calibration_parts import probabilities_instead
    from atypicality.outputs import ModelOutputs
    from atypicality.outputs.reading import ArrayFile, read_class_names, read_parts, warn_of_unnamed
    from atypicality.validation import warn

    known, classes = parse_names(names), None if class_names is None else read_class_names(class_names)
    found, absent = {}, []
    for purpose, path in paths.items():
        _refuse_answers(path)
        files = _split(path)
        read = read_parts(files, known, classes, optional=known if len(paths) > 1 else optional)
        if head is None or not known or "ids" not in read.parts:
            warn_of_unnamed(read.unnamed, files)
        if head is not None:
            _refuse_other_columns(read.parts, known.get("logits", ""), head, path)
            if _has_text_labels(read.parts):
                read.parts.setdefault("class_names", head.class_names_)
        number = partial(_Row, read.places, ArrayFile(files[0].name), read.parts.get("ids"))
        with _naming(path, number):
            outputs = ModelOutputs(**read.parts)._as(f"the outputs of {file_names(path)!r}")
        found[purpose] = outputs._replaced(_number=number, _unnamed=read.unnamed)
        if message := probabilities_instead(found[purpose]) or scale_warning(found[purpose], path, head):
            warn(message)
        absent.append(read.absent)
    if len(paths) > 1 and (nowhere := sorted(set.intersection(*absent))):
        raise ValueError(f"--names must give names of arrays in the files; {nowhere[0]!r} is in none of them.")
    return found


class _Row(NamedTuple):
    """A row as errors name it: its number in the file of an array, and by what a person finds it there."""

    places: "Mapping[str, ArrayFile]"
    first: "ArrayFile"
    ids: Any
    row: int

    def of(self, name: str) -> str:
        from atypicality.outputs.tables import place_in

        file, order = self.places.get(name, self.first)
        row = self.row if order is None else int(order[self.row])
        told = [place] if (place := place_in(file, row)) != f"row {row}" else []
        told += [] if self.ids is None else [f"id {str(self.ids[self.row])!r:.60}"]
        return f"{row} of {file!r}" + (f" ({', '.join(told)})" if told else "")


@contextlib.contextmanager
def _naming(path: Path, number: Any) -> Iterator[None]:
    """Let an error about values say in which file, and in which of its rows."""
    from atypicality.validation import numbered

    try:
        with numbered(number):
            yield
    except ValueError as error:
        if type(error) is not ValueError:
            raise
        raise ValueError(f"{file_names(path)!r}: {error}") from error


def _refuse_other_columns(parts: dict[str, Any], logits: str, head: Any, path: Path) -> None:
    """Refuse columns, named by classes, that are not those of the head's classes, by the names that they have."""
    if head.class_names_ is None or "class_names" not in parts or not logits.endswith("*"):
        return
    known, found, start = {*head.class_names_.tolist()}, {*parts["class_names"].tolist()}, logits.removesuffix("*")
    if not (odd := known ^ found):
        return
    lost, more = sorted(known - found), sorted(found - known)
    told = [f"has no column {start}{lost[0]} for the head's class {lost[0]!r}"] if lost else []
    told += [f"has a column {start}{more[0]}, which is no class of the head"] if more else []
    count = f" ({len(odd):,} classes differ)" if len(odd) > len(told) else ""
    raise ValueError(
        f"{file_names(path)!r} {' and '.join(told)}{count}. Write the columns of the model that was fitted."
    )


def _refuse_answers(path: Path) -> None:
    if path.suffix.lower() == ANSWERS:
        raise ValueError(
            f"{path.name!r} holds answers, as `predict` or `llm answers` write them; a classifier's head takes the "
            "model's outputs: logits, and embeddings or atypicality, as in a .npz or .parquet file."
        )


def scale_warning(outputs: "ModelOutputs", path: Path, head: Any) -> str | None:
    """What to say where the logits of most rows spread twice as far as those of any row that recalibrated the head."""
    import numpy as np

    from atypicality.recalibration.covariates import spreads

    widest = getattr(getattr(head, "recalibration_", None), "largest_spread_", None)
    if outputs.logits is None or not len(outputs) or widest is None:
        return None
    found = float(np.median(spreads(outputs.logits[:LOOKED_AT])))
    if not found > 2 * widest:  # nor with NaN, which is refused elsewhere
        return None
    return (
        f"the logits of {file_names(path)!r} spread over {found:.3g} from smallest to largest in half of the rows, "
        f"those of the calibration rows over {widest:.3g} at most. Are they on another scale, or of another model?"
    )


def looks_wrong(outputs: "ModelOutputs", path: Path, head: Any) -> list[str]:
    """What is likely a mistake about a file that was read, of which reading has warned: its scale, and cut tables."""
    from atypicality.outputs.tables import TABLES, cut_warning

    if is_answer_head(head):
        return []
    tables = [part for part in _split(path) if part.suffix.lower() in TABLES]
    return [told for told in (scale_warning(outputs, path, head), *map(cut_warning, tables)) if told]


def _has_text_labels(parts: dict[str, Any]) -> bool:
    return "labels" in parts and parts["labels"].dtype.kind in "US"


def file_names(path: Path) -> str:
    """The names of the files of a path, as errors tell them."""
    return ", ".join(part.name for part in _split(path))


def _split(path: Path) -> list[Path]:
    """The paths of a list, unless there is a file of that name."""
    return [path] if path.exists() else [Path(part) for part in str(path).split(",")]
