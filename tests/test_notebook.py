"""What a notebook shows: summaries as HTML with names as text, and charts as pictures, without a network."""

import json
import re
from functools import cache

import numpy as np
from conftest import needs

import atypicality as aty
from atypicality.datasets import make_world
from atypicality.head.drift import Drift
from atypicality.head.quantiles import QuantileScale
from atypicality.metrics import accuracy, by_group

HOSTILE = "</td><script>alert(1)</script>"


def named_world(n=3000):
    world = make_world(n, 4)
    return aty.ModelOutputs(
        world.logits,
        embeddings=world.embeddings,
        labels=world.labels,
        class_names=[HOSTILE, "b", "c", "d"],
        attributes={HOSTILE: np.arange(n) % 2},
    )


@cache
def shown():
    """Everything that shows itself in a notebook, by name."""
    outputs = named_world()
    head = aty.ReliabilityHead().fit(train=outputs[:1000], calibration=outputs[1000:2000])
    answer = head.predict(outputs[2000:])
    evaluation = aty.evaluate({HOSTILE: "uncalibrated"}, outputs[2000:])
    groups = np.where(np.arange(1000) % 2, HOSTILE, "other")
    correct = answer.label == outputs.labels[2000:]
    return {
        "head": head,
        "head before fit": aty.ReliabilityHead(),
        "outputs": outputs,
        "answer": answer,
        "drift": answer.drift,
        "evaluation": evaluation,
        "table": by_group(accuracy, confidence=answer.confidence, correct=correct, groups=groups),
    }


def test_everything_shows_itself_and_names_stay_text():
    for name, thing in shown().items():
        page = thing._repr_html_()
        assert "<table>" in page, name
        assert "<script" not in page, name
        tags = set(re.findall(r"</?([a-z]+)", page))
        assert tags <= {"table", "caption", "thead", "tbody", "tr", "th", "td", "p"}, name


def test_a_head_shows_what_it_found():
    head = shown()["head"]
    page = head._repr_mimebundle_()["text/html"]
    for number in (*head.sizes_.values(), *(row["count"] for row in head.advice_.values())):
        assert f"{number:,}" in page or str(number) in page
    assert f"{head.metrics_['after']['nll']:.4f}" in page
    assert "not fitted" in aty.ReliabilityHead()._repr_html_()


def test_drift_reads_as_text_too():
    scale = QuantileScale.from_rows(np.arange(200.0))
    text = repr(Drift(scale, np.full(300, 500.0)))
    assert "significant" in text
    assert "100.0%" in text


NOTEBOOK = """
import socket
_connect = socket.socket.connect
def refuse(self, address):
    if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1"):
        raise OSError(f"no network: {address}")
    return _connect(self, address)
socket.socket.connect = refuse
import altair as alt
import atypicality as aty
alt.renderers.enable("svg")
world = aty.datasets.make_world(2000, n_classes=4)
rows = world.outputs()
head = aty.ReliabilityHead().fit(train=rows[:500], calibration=rows[500:1200])
evaluation = aty.evaluate(head, rows[1200:])
"""


@needs("nbclient")
@needs("ipykernel")
@needs("altair")
def test_a_notebook_runs_without_a_network_and_shows_all(tmp_path):
    import nbclient
    import nbformat

    cells = [NOTEBOOK, "head", "rows", "evaluation", "head.predict(rows[1200:]).drift"]
    cells += ["aty.charts.quality_by_group(evaluation, 'accuracy')"]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(book, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [cell["outputs"][-1]["data"] for cell in book.cells[1:]]
    assert all("<table>" in data["text/html"] for data in outputs[:-1])
    picture = outputs[-1]["image/svg+xml"]
    assert "<svg" in picture
    assert not re.search(r"(src|href)=[\"']https?:", json.dumps(outputs))
