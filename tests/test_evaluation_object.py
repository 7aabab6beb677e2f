"""The `Evaluation` object: JSON, printing, and what `evaluate` and `compare` refuse."""

import html
import json
import re
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.special
from evaluation_cases import column, outputs_of, sets_of, train_of, world_of

import atypicality as aty
from atypicality.evaluation.methods import naming
from atypicality.evaluation.schema import STATISTICS, TABLES, WHERE_KNOWN
from atypicality.validation import warn


@pytest.fixture
def world(seed):
    return world_of(seed)


@pytest.fixture
def train(seed):
    return train_of(seed)


@pytest.fixture
def outputs(world):
    return outputs_of(world)


def test_json_round_trip_is_exact_and_strict(outputs, world, train):
    hostile = ["NaN", "</script><img src=x onerror=alert(1)>", "Infinity", "ü\u2028\"'\\"]
    outputs = aty.ModelOutputs(
        world.logits, embeddings=world.embeddings, labels=world.labels, class_names=hostile, ids=np.arange(len(world))
    )
    train = aty.ModelOutputs(embeddings=train.embeddings, labels=train.labels)
    for evaluation in (
        aty.evaluate({hostile[1]: (world.probs, sets_of(world.probs))}, outputs, train=train),
        aty.compare({hostile[0]: "ts"}, outputs, train=train, n_splits=1),
    ):
        text = evaluation.to_json()
        document = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
        again = aty.Evaluation.from_json(text)
        assert again == evaluation
        assert again.to_json() == text
        assert aty.Evaluation.from_json(evaluation.to_json(indent=2).encode()) == evaluation
        assert list(document["tables"]) == list(TABLES)
        for name, columns in TABLES.items():
            assert list(document["tables"][name]) == list(columns)
        assert [row["name"] for row in again.table("class_info")] == hostile
    assert np.isnan(again.table("overall", metric="ece")[0]["standard_error"])  # one split has no spread
    assert again.table("group_ranges", axis="atypicality", group=0)[0]["low"] == -np.inf


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: "not json", "it is not JSON"),
        (lambda d: "[" * 100_000, "it is not JSON"),
        (lambda d: "[1, NaN]", "NaN is not JSON"),
        (lambda d: "[]", "must have schema 1; got None"),
        (lambda d: d | {"schema": 2}, "must have schema 1; got 2.*newer atypicality"),
        (lambda d: d | {"n_samples": "many"}, "'n_samples' of type int; got 'many'"),
        (lambda d: d | {"methods": [1]}, "lists of strings"),
        (lambda d: {k: v for k, v in d.items() if k != "notes"}, "'notes' of type list; got None"),
        (lambda d: d | {"tables": {}}, "must hold the tables overall"),
        (lambda d: d | {"tables": d["tables"] | {"overall": {}}}, "table 'overall' must have the columns method"),
        (lambda d: _with(d, "metric", [1]), "lists of one length"),
        (lambda d: _with(d, "value", "much"), "overall.value must hold values of type number; got 'much'"),
        (lambda d: _with(d, "value", True), "overall.value must hold values of type number; got True"),
        (lambda d: _with(d, "method", 3), "overall.method must hold values of type string; got 3"),
    ],
)
def test_from_json_says_what_is_wrong(change, message):
    outputs = aty.ModelOutputs([[1.0, 0.0], [0.0, 1.0], [0.5, 0.0]], labels=[0, 1, 1])
    document = json.loads(aty.evaluate("uncalibrated", outputs, grid=(1, 1)).to_json())
    changed = change(document)
    with pytest.raises(ValueError, match=message):
        aty.Evaluation.from_json(changed if isinstance(changed, str) else json.dumps(changed))


def _with(document, name, value):
    """The document with one column of the first table filled with one value, or with another list."""
    table = document["tables"]["overall"]
    values = value if isinstance(value, list) else [value] * len(table["metric"])
    return document | {"tables": document["tables"] | {"overall": table | {name: values}}}


def test_an_evaluation_is_frozen(outputs):
    evaluation = aty.evaluate("uncalibrated", outputs)
    with pytest.raises(FrozenInstanceError):
        evaluation.methods = ()
    with pytest.raises(TypeError, match="does not support item assignment"):
        evaluation.tables["overall"] = {}
    evaluation.table("overall")[0]["value"] = 0.0  # a copy
    assert evaluation.table("overall")[0]["value"] > 0
    with pytest.raises(ValueError, match=r"name must be one of 'overall'.*got 'total'"):
        evaluation.table("total")
    with pytest.raises(ValueError, match=r"a column must be one of 'method', 'metric'.*got 'metrics'"):
        evaluation.table("overall", metrics="ece")


def test_names_that_do_not_exist_are_refused_and_known_ones_without_rows_are_not(outputs, train):
    evaluation = aty.evaluate({"model": "uncalibrated"}, outputs, train=train)
    for table, where, message in (
        ("overall", {"metric": "log_loss"}, r"metric must be one of 'accuracy'.*'nll'.*; got 'log_loss'"),
        ("overall", {"method": "head"}, "method must be one of 'model' in this table; got 'head'"),
        ("subgroups", {"attribute": "Side", "metric": "ece"}, "attribute must be one of 'side' in.*; got 'Side'"),
        ("atypicality_groups", {"group": 5}, "group must be one of 0, 1, 2, 3, 4 in this table; got 5"),
        ("predictions", {"method": "head"}, "method must be one of 'model'"),
        ("classes", {"metric": "ece"}, "metric must be one of 'accuracy', 'confidence', .* in this table; got 'ece'"),
    ):
        with pytest.raises(ValueError, match=message):
            evaluation.table(table, **where)
    for metric in ("coverage", "accepted_share"):  # of no sets, at no risk
        assert evaluation.table("overall", metric=metric) == evaluation.table("class_scores", method="model") == []
    assert evaluation.table("samples", row=10**6) == []  # rows are a part


@pytest.mark.filterwarnings("ignore:.*at max_risk=0.2 another class is accepted in most held-out rows")
def test_every_metric_is_known_and_what_is_accepted_is_counted_by_subgroup_and_class(outputs, train):
    head = aty.ReliabilityHead().fit(train=train, calibration=outputs[:600])
    rows = outputs[600:]
    evaluation = aty.evaluate({"model": "uncalibrated", "head": head}, rows, max_risk=0.2)
    plain = aty.evaluate({"model": "uncalibrated"}, aty.ModelOutputs(rows.logits, labels=rows.labels))
    measured, always = (
        {metric for table in one.tables.values() for metric in table.get("metric", ())} for one in (evaluation, plain)
    )
    assert measured - always == set(WHERE_KNOWN)
    answer = head.predict(rows, max_risk=0.2)
    wrong, side = answer.label != rows.labels, rows.attributes["side"]
    parts = [("subgroups", "subgroup", name, side == name) for name in ("left", "right")]
    parts += [("classes", "class_index", label, rows.labels == label) for label in range(4)]
    for table, key, name, members in parts:
        kept = answer.accepted & members
        [share] = evaluation.table(table, **{key: name}, metric="accepted_share")
        [risk] = evaluation.table(table, **{key: name}, metric="accepted_risk")
        assert (share["method"], share["count"], share["value"]) == ("head", members.sum(), kept.sum() / members.sum())
        assert (risk["count"], risk["value"]) == (kept.sum(), wrong[kept].mean())
    text = str(evaluation)
    assert f"Log loss (NLL): model {column(evaluation, 'overall', method='model', metric='nll')[0]:.3f} ± " in text
    for title in (
        "ECE and accuracy by side",
        "Coverage and set size by side",
        "Accepted and error rate by side, with 95 % intervals",
    ):
        lines = text.partition(f"{title}\n")[2].splitlines()
        assert [line.split()[0] for line in lines[1:5]] == ["side", "left", "right", "all"]


def test_of_an_attribute_of_many_values_the_largest_subgroups_are_printed(world):
    names = np.array([f"s{number}" for number in range(20)])[np.arange(len(world)) * 20 // 1300]
    attributes = {"<b>": names}
    outputs = aty.ModelOutputs(world.logits, labels=world.labels, attributes=attributes)
    evaluation = aty.evaluate("uncalibrated", outputs)
    lines = str(evaluation).partition("by <b>\n")[2].splitlines()
    assert lines[14].startswith("(7 smaller)")
    assert lines[15].startswith("all")
    assert "<b>" not in evaluation._repr_html_()


def test_every_table_and_column_is_documented():
    lines = (Path(__file__).parents[1] / "docs" / "evaluation.md").read_text(encoding="utf-8").splitlines()
    for table, columns in TABLES.items():
        [line] = [line for line in lines if line.startswith(f"| `{table}` |")]
        for name in set(columns) - set(STATISTICS):
            assert f"`{name}`" in line, (table, name)
    for name in STATISTICS:
        assert any(f"`{name}`" in line for line in lines)


def test_printing_shows_the_papers_layout(outputs, train):
    comparison = aty.compare(["uncalibrated", "ts", "raps", "vector"], outputs, train=train, n_splits=2)
    text = str(comparison)
    assert text.startswith("Comparison over 2 random halves of 1200 samples, 4 classes")
    lines = text.splitlines()
    header = lines.index("ECE and accuracy by input atypicality, the most typical first")
    assert lines[header + 1].split() == ["uncalibrated", "ts", "raps"]
    assert lines[header + 2].split() == ["quantile", "count", *["ECE", "accuracy"] * 3]
    assert [line.split()[0] for line in lines[header + 3 : header + 9]] == ["0.2", "0.4", "0.6", "0.8", "1", "all"]
    cell = f"{column(comparison, 'atypicality_groups', method='ts', group=4, metric='ece')[0]:.3f} ± "
    assert cell in lines[header + 7]
    starts = [lines[header + 1].index("ts"), lines[header + 2].index("ECE", lines[header + 2].index("ECE") + 1)]
    assert starts[0] == starts[1]  # a method stands over its first column
    assert max(map(len, lines[:-3])) < 110
    assert "Coverage and set size by class atypicality, the most common first" in text
    assert repr(comparison) == text


def test_printing_without_atypicality_shows_the_totals_and_says_why(outputs):
    text = str(aty.evaluate({"a name that is longer than its two columns together": "uncalibrated"}, outputs))
    assert text.startswith("Evaluation of 1200 samples")
    assert "Note: no atypicality is known" in text
    assert re.search(r"^all +1200 +0\.\d{3} ± 0\.\d{3}", text, re.MULTILINE)


def test_html_is_escaped(outputs, train):
    name = "</table><script>alert(1)</script>"
    page = aty.evaluate({name: "uncalibrated"}, outputs, train=train)._repr_html_()
    assert "<script>" not in page
    assert html.escape(name) in page
    assert page.count("<table>") == page.count("</table>") == 3  # by atypicality, class atypicality and side


def test_to_frame_needs_pandas_and_says_so(outputs, monkeypatch):
    evaluation = aty.evaluate("uncalibrated", outputs)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs pandas: pip install pandas, or use Evaluation\.table"):
        evaluation.to_frame("overall")
    fake = SimpleNamespace(DataFrame=lambda rows, columns: (rows, columns))
    monkeypatch.setitem(sys.modules, "pandas", fake)
    rows, columns = evaluation.to_frame("overall", metric="ece")
    assert rows == evaluation.table("overall", metric="ece")
    assert columns == list(TABLES["overall"])


@pytest.mark.parametrize(
    ("methods", "error", "message"),
    [
        ({}, ValueError, "at least one method; got none. Known names: uncalibrated, ts"),
        ([], ValueError, "at least one method; got none"),
        ({1: "uncalibrated"}, TypeError, "named by text that is not empty; got 1"),
        ({"": "uncalibrated"}, TypeError, "named by text that is not empty; got ''"),
        ("ts", ValueError, "evaluate fits nothing.*got 'ts' for 'ts'.*use compare"),
        ({"a": np.full((5, 4), 0.25)}, ValueError, "method 'a': probs must have one entry per row; got 5 for 1200"),
        ({"a": np.full((1200, 3), 1 / 3)}, ValueError, "method 'a': probs must have 4 columns"),
        ({"a": np.ones((1200, 4))}, ValueError, "method 'a': probs must have rows summing to 1; row 0 sums to 4"),
        ({"a": np.full((1200, 4), -1.0)}, ValueError, "method 'a': .*row 0 holds -1. Are these logits"),
        ({"a": aty.SplitConformal()}, TypeError, "SplitConformal makes sets from probabilities; pass a pair"),
        ({"a": (None, np.ones((3, 4), bool))}, ValueError, r"sets must be boolean of shape \(1200, 4\).*\(3, 4\)"),
        ({"a": (None, np.ones((1200, 4)))}, ValueError, "sets must be boolean.*got float64"),
        ({"a": (None, None, None)}, ValueError, "must be a pair, .probabilities, sets.; got 3 entries"),
        ({"a": aty.TemperatureScaling()}, ValueError, "not fitted yet"),
        ({"a": aty.GroupTemperatureScaling().fit(np.eye(4), [0, 0, 2, 2], groups=[0, 0, 1, 1])}, ValueError,
         "method 'a': GroupTemperatureScaling needs groups="),
    ],
)  # fmt: skip
def test_bad_methods(methods, error, message, outputs):
    with pytest.raises(error, match=message):
        aty.evaluate(methods, outputs)


@pytest.mark.parametrize(
    ("methods", "error", "message"),
    [
        ("temperature", ValueError, r"known names \(uncalibrated, ts, .*conditional\); got 'temperature'"),
        ("aa-ts", ValueError, "known names"),
        ("content-free", ValueError, "learns from content-free prompts.*ContentFreeCalibration"),
        ({"a": np.full((1200, 4), 0.25)}, TypeError, "cannot fit ndarray.*give probabilities to evaluate"),
        ("group-ts", ValueError, "method 'group-ts': GroupTemperatureScaling needs atypicality="),
    ],
)
def test_bad_methods_to_compare(methods, error, message, outputs):
    with pytest.raises(error, match=message):
        aty.compare(methods, outputs, n_splits=1)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"outputs": np.zeros((3, 2))}, TypeError, "outputs must be ModelOutputs; got ndarray"),
        ({"outputs": aty.ModelOutputs([[1.0, 0.0]])}, ValueError, "must have labels; they have only logits"),
        ({"outputs": aty.ModelOutputs(labels=[0, 1])}, ValueError, "must have logits; they have only labels"),
        ({"outputs": aty.ModelOutputs(np.zeros((0, 2)), labels=np.zeros(0, int))}, ValueError, "at least one row"),
        (
            {"outputs": aty.ModelOutputs([[np.nan, 0.0]] * 2, labels=[0, 1])},
            ValueError,
            "logits must be finite.*row.* hold",
        ),
        ({"train": aty.ModelOutputs(embeddings=[[0.0], [1.0]])}, ValueError, "must have labels; they have only embed"),
        ({"train": "train.npz"}, TypeError, "train must be ModelOutputs.*or a fitted density; got str"),
        ({"train": aty.ModelOutputs(embeddings=[[0.0], [1.0]], labels=[0, 0])}, ValueError, "must have embeddings"),
        ({"grid": 6}, ValueError, r"grid must be a pair.*got 6"),
        ({"grid": (6, 0)}, ValueError, "grid must be at least 1; got 0"),
        ({"n_groups": 0}, ValueError, "n_groups must be at least 1; got 0"),
        ({"n_bins": 2.5}, TypeError, "n_bins must be a whole number; got 2.5"),
        ({"groups": "skin"}, ValueError, "groups must be one of 'side'; got 'skin'"),
        ({"random_state": -1}, ValueError, "random_state must be at least 0"),
    ],
)
@pytest.mark.parametrize("function", [aty.evaluate, aty.compare])
def test_bad_arguments(function, arguments, error, message):
    outputs = aty.ModelOutputs([[1.0, 0.0], [0.0, 1.0]] * 5, labels=[0, 1] * 5, attributes={"side": [0, 1] * 5})
    with pytest.raises(error, match=message):
        function("uncalibrated", **{"outputs": outputs, **arguments})


def test_bad_arguments_of_one_function(outputs):
    with pytest.raises(ValueError, match="n_splits must be at least 1; got 0"):
        aty.compare("ts", outputs, n_splits=0)
    with pytest.raises(ValueError, match="alpha must lie strictly between 0 and 1; got 5"):
        aty.compare("aps", outputs, alpha=5)
    with pytest.raises(ValueError, match="keep_samples must be at least 0"):
        aty.evaluate("uncalibrated", outputs, keep_samples=-1)
    with pytest.raises(ValueError, match="fraction must leave rows on both sides"):
        aty.compare("ts", outputs[:1])
    stratified, _ = outputs.split(0.5, stratify=True)
    with pytest.raises(ValueError, match=r"method 'aps': .*stratified split and cannot carry a guarantee"):
        aty.compare("aps", stratified, n_splits=1)


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ([0, 1, 7], r"classes outside the 4 columns of the logits: \[7\]"),
        (["a", "class 0", "class 1"], r"not list: \['a'\]"),
    ],
)
def test_a_density_of_other_classes_is_refused(classes, message, outputs, world):
    labels = np.array(classes)[np.arange(60) % 3]
    density = aty.GaussianAtypicality().fit(world.embeddings[:60], labels)
    with pytest.raises(ValueError, match=message):
        aty.evaluate("uncalibrated", outputs, train=density)


def test_densities_are_put_in_the_order_of_the_columns(outputs, world):
    names = np.array(["class 3", "class 0", "class 1"])
    codes = np.array([3, 0, 1])
    density = aty.GaussianAtypicality().fit(world.embeddings[:300], names[np.arange(300) % 3])
    numbered = aty.GaussianAtypicality().fit(world.embeddings[:300], codes[np.arange(300) % 3])
    seen = []

    def predict_proba(logits, *, class_log_density):
        seen.append(class_log_density)
        return scipy.special.softmax(logits, axis=1)

    for train in (density, numbered):
        aty.evaluate({"duck": SimpleNamespace(predict_proba=predict_proba)}, outputs, train=train, keep_samples=0)
    np.testing.assert_array_equal(seen[0], seen[1])
    expected = numbered.class_log_density(world.embeddings)  # columns 0, 1, 3
    np.testing.assert_array_equal(seen[0][:, [0, 1, 3]], expected)
    np.testing.assert_array_equal(seen[0][:, 2], expected.min(axis=1))


def test_a_warning_names_its_method():
    with pytest.warns(UserWarning, match="^method 'new': two groups became one"), naming("new"):
        warn("two groups became one")
