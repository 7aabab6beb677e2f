import contextlib
import io
import json

import numpy as np
import pytest

from atypicality.cli import main
from atypicality.cli.demo_tables import AWARE, MODEL, SINGLE, run_demo
from atypicality.groups import QUADRANTS
from atypicality.shipping.bundle import load


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """The demo that the command runs, what it prints as JSON, and the folder that it leaves behind."""
    folder, printed, ran = tmp_path_factory.mktemp("demo"), io.StringIO(), []

    def remembered(**settings):
        ran.append(run_demo(**settings))
        return ran[0]

    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr("atypicality.cli.demo_tables.run_demo", remembered)
        assert main(["demo", "--json", "--out", str(folder)]) == 0
    return ran[0], printed.getvalue(), folder


@pytest.fixture(scope="module")
def demo(shown):
    return shown[0]


def overall(demo, method):
    return {row["metric"]: row["value"] for row in demo.evaluation.table("overall", method=method)}


def test_recalibration_mends_the_model(demo):
    model, single, aware = (overall(demo, method) for method in (MODEL, SINGLE, AWARE))
    assert single["nll"] < model["nll"]
    assert aware["nll"] < single["nll"]
    assert aware["accuracy"] > model["accuracy"]  # rare classes get their share back
    assert aware["ece"] < model["ece"]


def test_overconfidence_of_the_model_grows_with_atypicality(demo):
    rows = demo.evaluation.table("atypicality_groups", method=MODEL, metric="accuracy")
    assert rows[0]["value"] > rows[-1]["value"] + 0.1


def test_sets_keep_their_promise(demo):
    # Coverage of n test rows after m threshold rows varies by about sqrt(.09 / n + .09 / m): m = 2000 and 1667.
    for method in (SINGLE, AWARE):
        assert overall(demo, method)["coverage"] > 0.9 - 4 * np.sqrt(0.09 / 5000 + 0.09 / 1600)


def test_parts_are_counted(demo):
    assert demo.sizes == {"train": 10000, "recalibration": 2500, "edges": 250, "thresholds": 2250, "test": 5000}
    assert sum(demo.class_counts.values()) == 10000
    assert sum(row.count for row in demo.quadrants) == 5000


def test_quadrants_differ_as_their_names_say(demo):
    rows = {row.quadrant: row for row in demo.quadrants}
    assert list(rows) == list(QUADRANTS)
    assert rows["reliable"].accuracy > rows["ambiguous"].accuracy
    assert rows["reliable"].accuracy > rows["untrustworthy"].accuracy
    assert rows["reliable"].set_size < rows["untrustworthy"].set_size


def test_one_example_of_each_kind(demo):
    assert [example.quadrant for example in demo.examples] == list(QUADRANTS)
    for example in demo.examples:
        assert 0 < example.confidence <= 1
        assert (example.atypicality_quantile > 0.79) == (example.quadrant in ("extrapolation", "untrustworthy"))
        assert example.prediction_set


def test_command_prints_the_same_numbers_as_json_and_saves_the_head(shown):
    demo, printed, folder = shown
    assert load(folder / "head").summary() == demo.head.summary()
    assert json.loads(printed) == json.loads(json.dumps(demo.to_dict(), allow_nan=False))


def test_command_fits_80_columns_and_tells_what_to_run_next(demo, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("atypicality.cli.demo_tables.run_demo", lambda **settings: demo)
    assert main(["demo", "--out", str(tmp_path / "x")]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "…" not in out
    for words in (
        "1. Overall",
        "untrustworthy",
        "temperature scaling",
        "import atypicality as aty",
        "atypicality theory",
    ):
        assert words in out
