"""Names of classes, ids, attributes and methods are somebody's text: a terminal shows them and never obeys them."""

import contextlib
import io
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atypicality as aty
from atypicality.cli import main
from atypicality.datasets import make_world
from atypicality.llm import PrecomputedScorer, Template
from atypicality.llm.texts import read_texts
from atypicality.metrics import by_group
from atypicality.terminal import listed, printable

CODES = "\x1b[2J\x9b31m\u202ecat\x07\x7f\u2066\u200f\r\n"
SHOWN = r"\x1b[2J\x9b31m\u202ecat\x07\x7f\u2066\u200f\r\n"


def obeyed(text):
    """Characters of a text, apart from the ends of lines, that a terminal would not show."""
    return [c for c in text.replace("\n", "") if not c.isprintable()]


@given(st.text())
def test_all_that_is_printed_can_be_shown_and_plain_text_stays(text):
    assert printable(text).isprintable()
    if text.isprintable():
        assert printable(text) == text


@pytest.mark.parametrize("code", [*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)])
def test_controls_and_bidirectional_marks_are_escaped(code):
    assert printable(f"a{chr(code)}b") == f"a{chr(code)!r}b".replace("'", "")


def test_lists_keep_their_commas():
    assert listed(["a", CODES, 3]) == f"a, {SHOWN}, 3"


@pytest.fixture(scope="module")
def world():
    made = make_world(1500, 3, temperature=2.0, random_state=1)
    return aty.ModelOutputs(
        made.logits,
        embeddings=made.embeddings,
        labels=made.labels,
        attributes={CODES: np.where(np.arange(1500) % 2, "left", CODES)},
        class_names=["a", CODES, "c"],
        ids=[f"{CODES} {row}" for row in range(1500)],
    )


@pytest.fixture(scope="module")
def head(world):
    return aty.ReliabilityHead().fit(train=world[:600], calibration=world[600:1000])


def test_tables_and_objects_print_names_escaped(world, head):
    answer, evaluation = head.predict(world[1000:]), aty.evaluate({CODES: head}, world[1000:])
    table = by_group(lambda values: float(np.mean(values)), np.arange(4.0), groups=["a", "a", CODES, CODES])
    for printed in (repr(answer), repr(evaluation), repr(world), repr(table), head.summary()):
        assert obeyed(printed) == []
    assert SHOWN in repr(evaluation)
    assert SHOWN in repr(world)
    assert SHOWN in repr(table)
    assert r"\x1b[2J" in repr(answer)


@pytest.fixture(scope="module")
def folder(world, head, tmp_path_factory):
    path = tmp_path_factory.mktemp("files")
    head.save(path / "head")
    world[1000:].save(path / "test.npz")
    return path


@pytest.mark.parametrize("command", ["evaluate", "predict", "report"])
def test_commands_print_names_escaped(command, folder, capsys):
    out = ["--out", str(folder / ("out.csv" if command == "predict" else "out.html"))] if command != "evaluate" else []
    assert main([command, str(folder / "head"), str(folder / "test.npz"), *out]) == 0
    assert obeyed("".join(capsys.readouterr())) == []


def test_json_is_printed_escaped_and_means_the_same(folder, head, world, capsys):
    assert main(["evaluate", str(folder / "head"), str(folder / "test.npz"), "--json"]) == 0
    printed = capsys.readouterr().out
    assert obeyed(printed) == []
    names = json.loads(printed)["tables"]["class_info"]["name"]
    assert CODES in names


def test_errors_and_warnings_of_commands_are_printed_escaped(folder, tmp_path, capsys):
    np.savez(tmp_path / "more.npz", **{"logits": np.zeros((2, 3)), CODES: np.zeros(2)})
    with pytest.warns(UserWarning, match=r"also has \\x1b\[2J"):
        assert main(["evaluate", str(folder / "head"), str(tmp_path / "more.npz")]) == 2
    assert main(["evaluate", str(tmp_path / CODES), str(tmp_path / "more.npz")]) == 2
    printed = capsys.readouterr().err
    assert obeyed(printed) == []
    assert r"\x1b[2J" in printed


def no_array(tmp_path):
    np.savez(tmp_path / "none.npz", **{CODES: np.zeros(2)})
    aty.ModelOutputs.load(tmp_path / "none.npz")


def no_column(tmp_path):
    (tmp_path / "texts.jsonl").write_text(json.dumps({CODES: "a"}))
    read_texts(tmp_path / "texts.jsonl", text=["text"])


def no_label(tmp_path):
    record = {"prompt": "a", "log_probs": [-1.0], "label_log_probs": {CODES: -1.0}}
    (tmp_path / "scores.jsonl").write_text(json.dumps(record))
    PrecomputedScorer(tmp_path / "scores.jsonl").score_labels(["a"], [" b"])


def no_scores(tmp_path):
    (tmp_path / "scores.jsonl").write_text(json.dumps({"prompt": "a", CODES: 1}))
    PrecomputedScorer(tmp_path / "scores.jsonl").score(["a"])


def odd_code(tmp_path):
    Template("{input}", ["a", CODES]).word(CODES + "b")


def unknown_key(tmp_path):
    saved = tmp_path / "head"
    outputs = make_world(3000, 3, temperature=2.0).outputs()
    aty.ReliabilityHead().fit(train=outputs[:1000], calibration=outputs[1000:]).save(saved)
    document = json.loads((saved / "head.json").read_text())
    document[CODES] = 1
    (saved / "head.json").write_text(json.dumps(document))
    aty.load(saved)


@pytest.mark.parametrize("cause", [no_array, no_column, no_label, no_scores, odd_code, unknown_key])
def test_errors_name_what_came_escaped(cause, tmp_path):
    with pytest.raises(ValueError, match=r"\\x1b\[2J") as caught:
        cause(tmp_path)
    assert obeyed(str(caught.value)) == []


def test_progress_describes_methods_escaped_and_without_markup(monkeypatch):
    from atypicality.blocks import progress

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    drawn = Terminal()
    with contextlib.redirect_stderr(drawn), progress.working("working"):
        progress.stage(f"measuring [bold]{CODES}")
        progress._bar.get()._progress.refresh()
    assert r"measuring [bold]\x1b[2J" in drawn.getvalue()
    assert "\x1b[2Jcat" not in drawn.getvalue()
    assert "\u202e" not in drawn.getvalue()
