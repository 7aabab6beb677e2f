"""The service over localhost, by real clients: what it answers, what it refuses, and what it survives."""

import concurrent.futures
import contextlib
import http.client
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import imported, needs

import atypicality as aty
from atypicality.cli import main
from atypicality.datasets import load_fashion_mnist_lt

pytestmark = needs("starlette", "uvicorn", "httptools", "prometheus_client")

SECONDS = 1.0
MAX_BYTES = 200_000
FIELDS = ("label", "confidence", "prediction_set", "atypicality", "atypicality_quantile", "accepted")


class Server:
    """A service in a process of its own."""

    def __init__(self, head, *options, early=lambda process: None):
        command = [sys.executable, "-m", "atypicality", "serve", str(head), "--port", "0", "--name", "clothes"]
        self.process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        early(self.process)
        found = re.search(r"http://([\d.]+):(\d+)", line := self.process.stdout.readline())
        assert found, line + self.process.stderr.read()
        self.line = line
        self.address = found[1], int(found[2])

    def request(self, method, path, body=None, headers=None):
        """The status and the body of an answer."""
        connection = http.client.HTTPConnection(*self.address, timeout=30)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def predict(self, body):
        """The JSON that /predict gives."""
        status, answer = self.request("POST", "/predict", json.dumps(body))
        assert status == 200, answer
        return json.loads(answer)

    def metric(self, pattern):
        """The value of one series."""
        return float(re.search(rf"^{pattern} (\S+)$", self.request("GET", "/metrics")[1].decode(), re.M)[1])

    def raw(self, *pieces, half_close=False):
        """What comes back for bytes sent as they are, up to the end of the connection."""
        with socket.create_connection(self.address, timeout=20) as connection:
            for piece in pieces:
                connection.sendall(piece)
            if half_close:
                connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(65536), b""))

    def stop(self):
        """Ask it to end; its exit code, and what it wrote."""
        self.process.send_signal(signal.SIGTERM)
        errors = self.process.communicate(timeout=30)[1]
        return self.process.returncode, errors


@pytest.fixture(scope="module")
def data():
    return load_fashion_mnist_lt()


@pytest.fixture(scope="module")
def heads(data, tmp_path_factory):
    """Folders of two heads of the same classes, which give other probabilities."""
    folder = tmp_path_factory.mktemp("heads")
    for name, rows in (("first", 800), ("second", 600)):
        head = aty.ReliabilityHead().fit(train=data.train[:1500], calibration=data.calibration[:rows])
        head.save(folder / name)
    return folder


@pytest.fixture(scope="module")
def server(heads):
    options = ["--max-risk", "0.05", "--max-bytes", str(MAX_BYTES), "--max-rows", "400", "--timeout", str(SECONDS)]
    server = Server(heads / "first", *options)
    yield server
    assert server.stop() == (0, "")  # nothing was logged: no warning and no traceback


def wide(outputs):
    """The same rows in float64, as JSON carries them."""
    return aty.ModelOutputs(outputs.logits.astype(float), embeddings=outputs.embeddings.astype(float))


def rows(outputs):
    """Rows of /predict, named by their numbers."""
    pairs = zip(outputs.logits.tolist(), outputs.embeddings.tolist(), strict=True)
    return [{"id": f"row {i}", "logits": z, "embeddings": x} for i, (z, x) in enumerate(pairs)]


def tensors(outputs, *, binary=True, kind="FP32"):
    import tritonclient.http as triton
    from tritonclient.utils import triton_to_np_dtype

    made = []
    for name in ("logits", "embeddings"):
        array = getattr(outputs, name).astype(triton_to_np_dtype(kind))
        made.append(triton.InferInput(name, list(array.shape), kind))
        made[-1].set_data_from_numpy(array, binary_data=binary)
    return made


@pytest.fixture(scope="module")
def client(server):
    triton = imported("tritonclient.http")
    with contextlib.closing(triton.InferenceServerClient("{}:{}".format(*server.address))) as client:
        yield client


# The Open Inference Protocol, by Triton's own client


@needs("tritonclient")
def test_a_client_of_the_protocol_finds_health_and_metadata(client, heads):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("clothes")
    assert not client.is_model_ready("shoes")
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    found = client.get_model_metadata("clothes")
    assert client.get_model_metadata("clothes", model_version=found["versions"][0]) == found
    assert found["inputs"][1] == {"name": "embeddings", "datatype": "FP32", "shape": [-1, 48]}
    assert {"name": "probabilities", "datatype": "FP32", "shape": [-1, 10]} in found["outputs"]
    assert found["parameters"]["class_names"] == aty.load(heads / "first").class_names_.tolist()


@needs("tritonclient")
@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("kind", ["FP32", "FP64"])
def test_inference_equals_predict(client, heads, data, binary, kind):
    import tritonclient.http as triton

    test = data.test[: 200 if binary else 80]
    dtype = {"FP32": np.float32, "FP64": np.float64}[kind]
    outputs = aty.ModelOutputs(test.logits.astype(dtype), embeddings=test.embeddings.astype(dtype))
    right = aty.load(heads / "first").predict(outputs, max_risk=0.05)
    wanted = [triton.InferRequestedOutput(name, binary_data=False) for name in (*FIELDS, "probabilities", "quadrant")]
    found = client.infer(
        "clothes", tensors(test, binary=binary, kind=kind), request_id="7", outputs=None if binary else wanted
    )
    assert found.get_response()["id"] == "7"
    for name in ("label", "prediction_set", "accepted"):
        np.testing.assert_array_equal(found.as_numpy(name), getattr(right, name))
    np.testing.assert_allclose(found.as_numpy("probabilities"), right.proba, atol=1e-6)
    np.testing.assert_allclose(found.as_numpy("confidence"), right.confidence, atol=1e-6)
    np.testing.assert_allclose(found.as_numpy("atypicality"), right.atypicality, rtol=1e-9)
    words = [word if isinstance(word, str) else word.decode() for word in found.as_numpy("quadrant")]
    assert words == right.quadrant.tolist()


@needs("tritonclient")
def test_the_protocol_carries_our_messages(client, data):
    from tritonclient.utils import InferenceServerException

    with pytest.raises(InferenceServerException, match="the outputs must have embeddings"):
        client.infer("clothes", tensors(data.test[:1])[:1])
    with pytest.raises(InferenceServerException, match="clients may not reload this service"):
        client.load_model("clothes")


# /predict


def test_rows_and_columns_are_answered_alike_and_equal_predict(server, heads, data):
    outputs = wide(data.test[:30])
    right = aty.load(heads / "first").predict(outputs, max_risk=0.05)
    found = server.predict({"rows": rows(outputs)})["rows"]
    columns = {"logits": outputs.logits.tolist(), "embeddings": outputs.embeddings.tolist()}
    assert [row | {"id": f"row {i}"} for i, row in enumerate(server.predict(columns)["rows"])] == found
    assert [row["id"] for row in found] == [f"row {i}" for i in range(30)]
    for row, expected in zip(found, right.records(), strict=True):
        for name in expected.keys() - {"confidence", "proba", "atypicality", "atypicality_quantile"}:
            assert row[name] == expected[name]
        np.testing.assert_allclose(row["proba"], expected["proba"], atol=1e-6)


def test_columns_in_another_order_are_put_in_order_by_name(server, heads, data):
    head, outputs = aty.load(heads / "first"), wide(data.test[:5])
    turned = outputs.logits[:, ::-1].tolist()
    names = head.class_names_[::-1].tolist()
    body = {"logits": turned, "embeddings": outputs.embeddings.tolist(), "class_names": names}
    found = server.predict(body)["rows"]
    right = list(head.predict(outputs, max_risk=0.05).records())
    assert [row["label"] for row in found] == [row["label"] for row in right]
    np.testing.assert_allclose([row["proba"][::-1] for row in found], [row["proba"] for row in right], atol=1e-6)


# What is refused

ROW = {"logits": [0.0] * 10, "embeddings": [0.5] * 48}
GOOD = {name: [values] for name, values in ROW.items()}


def tensor(name="logits", shape=(1, 10), datatype="FP32", data=(0.0,) * 10, **more):
    return {"name": name, "shape": list(shape), "datatype": datatype, "data": list(data)} | more


EMBEDDINGS = tensor("embeddings", (1, 48), data=[0.5] * 48)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (GOOD | {"logits": [[0.0] * 9]}, "logits must have 10 columns"),
        (GOOD | {"embeddings": [[0.5] * 4]}, "embeddings must have 48 columns"),
        ({"logits": GOOD["logits"]}, "the outputs must have embeddings"),
        (GOOD | {"logits": [[float("nan")] + [0.0] * 9]}, "logits"),
        (GOOD | {"logits": [["high"] * 10]}, "logits must be numbers, in rows of equal length"),
        (GOOD | {"logits": [[0.0] * 10, [0.0]]}, "in rows of equal length; row 1 has 1, and row 0 10."),
        (
            {"rows": [ROW, ROW | {"logits": [0.0] * 9 + [None]}]},
            "logits must be numbers, in rows of equal length; row 1 ",
        ),
        (GOOD | {"logits": []}, "logits"),
        (GOOD | {"logits": [[1e999] * 10]}, "logits"),
        (GOOD | {"class_names": [f"kind {i}" for i in range(10)]}, "class_names must be those of the head"),
        (GOOD | {"scores": [[1]]}, "the body may hold logits, embeddings, atypicality, ids, class_names; got 'scores'"),
        ({"rows": [{"logits": [0.0] * 10}, {"id": "a", "logits": [0.0] * 10}]}, "all rows must have the same keys"),
        ({"rows": []}, "rows must be a list of objects"),
        ({"logits": [[0.0] * 10] * 401, "embeddings": [[0.5] * 48] * 401}, "at most 400 rows; got 401"),
        ([1], "the body must be a JSON object; got list"),
    ],
)
def test_predict_refuses_with_our_message(server, body, words):
    status, answer = server.request("POST", "/predict", json.dumps(body))
    assert (status, words in json.loads(answer)["error"]) == (400, True), answer
    assert len(server.predict(GOOD)["rows"]) == 1


@pytest.mark.parametrize(
    ("body", "headers", "words"),
    [
        (b"", {}, "the request must be JSON"),
        (b"{" * 50_000, {}, "the request must be JSON"),
        (b"[" * 50_000, {}, "the request must be JSON"),
        ({}, {}, "inputs must be a list of objects"),
        ({"inputs": [tensor()]}, {}, "the outputs must have embeddings"),
        ({"inputs": [tensor("scores")]}, {}, "an input must be one of"),
        ({"inputs": [tensor(), tensor()]}, {}, "input 'logits' stands there twice"),
        (
            {"inputs": [tensor(datatype="INT64")]},
            {},
            "the datatype of logits must be FP16 or FP32 or FP64; got 'INT64'",
        ),
        ({"inputs": [tensor(shape=(2, 10))]}, {}, "logits must have the shape [2, 10] that it claims"),
        ({"inputs": [tensor(shape=(-1, 10))]}, {}, "the shape of logits must be a list of lengths"),
        ({"inputs": [tensor(shape=(10**6, 10))]}, {}, "at most 400 rows"),
        ({"inputs": [tensor(shape=(1, 9), data=[0] * 9), EMBEDDINGS]}, {}, "logits must have 10 columns"),
        ({"inputs": [tensor(), EMBEDDINGS], "outputs": [{"name": "x"}]}, {}, "outputs may be label, confidence"),
        ({"inputs": [tensor(parameters={"binary_data_size": 40})]}, {}, "at most the 0 bytes that are left"),
        ({"inputs": [tensor(parameters=3)]}, {}, "parameters must be an object"),
        (b"{}", {"inference-header-content-length": "3"}, "Inference-Header-Content-Length must be a number up to"),
        (b'{"inputs": [{}]}xx', {"inference-header-content-length": "16"}, "an input must be one of"),
    ],
)
def test_inference_refuses_with_our_message(server, body, headers, words):
    content = body if isinstance(body, bytes) else json.dumps(body)
    status, answer = server.request("POST", "/v2/models/clothes/infer", content, headers)
    assert (status, words in json.loads(answer)["error"]) == (400, True), answer


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/nowhere", {}, 404),
        ("GET", "/v2/models/shoes", {}, 404),
        ("GET", "/v2/models/clothes/versions/9", {}, 404),
        ("POST", "/v2/models/shoes/infer", {}, 404),
        ("GET", "/predict", {}, 405),
        ("POST", "/predict", {"content-encoding": "gzip"}, 415),
        ("POST", "/v2/repository/models/clothes/load", {}, 403),
    ],
)
def test_what_is_not_there_says_so_in_json(server, method, path, headers, status):
    found, answer = server.request(method, path, "{}" if method == "POST" else None, headers)
    assert found == status
    message = json.loads(answer)["error"]
    assert message == "this route takes POST, not GET /predict." if status == 405 else message


def head_of(length, *more):
    lines = ["POST /predict HTTP/1.1", "host: x", f"content-length: {length}", *more]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def status_of(answer):
    return int(re.match(rb"HTTP/1\.1 (\d+)", answer)[1])


CHUNK = b"8000\r\n" + b" " * 0x8000 + b"\r\n"


HOSTILE = {
    "bytes": ([b"\x16\x03\x01\x02\x00hello\r\n\r\n"], False, 400),
    "long": ([b"GET /v2 HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 70_000], False, 431),
    "slow-header": ([b"GET /v2 HT"], False, 408),
    "slow": ([head_of(100), b"{"], False, 408),
    "huge": ([head_of(10**12), b" " * 1000], False, 413),
    "expects": ([head_of(10**12, "expect: 100-continue")], False, 413),
    "chunks": (
        [b"POST /predict HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n", *[CHUNK] * 10],
        False,
        413,
    ),
    "cut": ([head_of(100), b"{"], True, 400),
    "cut-header": ([b"GET /v2 HT"], True, 400),
    "half-closed": ([head_of(len(json.dumps(GOOD))), json.dumps(GOOD).encode()], True, 200),
}
"""Bytes of a connection, whether its end is told, and the status to answer."""


@pytest.fixture(scope="module")
def told(server):
    """The status that each hostile connection was told, and the seconds until it was closed; all are open at once."""

    def one(pieces, half_close, _):
        start = time.monotonic()
        return status_of(server.raw(*pieces, half_close=half_close)), time.monotonic() - start

    with concurrent.futures.ThreadPoolExecutor(len(HOSTILE)) as pool:
        asked = {name: pool.submit(one, *case) for name, case in HOSTILE.items()}
        return {name: future.result() for name, future in asked.items()}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_connections_are_told_and_closed(told, name):
    status, seconds = told[name]
    assert status == HOSTILE[name][-1]
    assert seconds < 6 * SECONDS


def test_memory_stays_flat_under_hostile_requests(server):
    def storm():
        for _ in range(40):
            server.request("POST", "/predict", b"[" * 100_000)
            server.raw(head_of(100), b"{" * 50, half_close=True)
            server.request("POST", "/predict", json.dumps(GOOD | {"logits": [[0.0] * 9] * 300}))
            with contextlib.suppress(OSError):  # it may be closed while we send
                server.raw(head_of(10**9), b" " * MAX_BYTES, half_close=True)

    storm()
    before = server.metric("process_resident_memory_bytes")
    storm()
    assert server.metric("process_resident_memory_bytes") - before < 8 * 2**20  # 40 bodies of 200 kB would be 8 MB
    assert server.metric("atypicality_waiting_rows") == 0


# Metrics, reload, stop


def test_metrics_count_requests_rows_and_words(server, data):
    series = r'atypicality_rows_by_total\{field="quadrant",value="reliable"\}'
    server.predict({"rows": rows(wide(data.test[:1]))})
    before = [server.metric(name) for name in ("atypicality_rows_total", series)]
    outputs = wide(data.test[:50])
    found = server.predict({"rows": rows(outputs)})["rows"]
    after = [server.metric(name) for name in ("atypicality_rows_total", series)]
    reliable = sum(row["quadrant"] == "reliable" for row in found)
    assert np.subtract(after, before).tolist() == [50, reliable]
    assert server.request("POST", "/predict", "{}")[0] == 400
    assert server.metric(r'atypicality_requests_total\{route="/predict",status="400"\}') > 0
    assert all(server.metric(rf'atypicality_rows_by_quantile_total\{{tenth="0.{tenth}"\}}') >= 0 for tenth in range(10))


def test_every_series_that_can_be_foreseen_is_there_before_its_first_event(judge, data):
    from atypicality.serving.metrics import Metrics
    from atypicality.serving.service import ROW_ROUTES

    answer = judge.answers([wide(data.test[:200])])[0]
    metrics = Metrics(lambda: 0.0, ROW_ROUTES)
    metrics.serving("clothes", "1", judge.sample)

    def series():
        lines = metrics.text().decode().splitlines()
        return {line.split(" ")[0]: line.split(" ")[1] for line in lines if line.startswith("atypicality_")}

    before = series()
    assert before['atypicality_reloads_total{result="failed"}'] == "0.0"
    metrics.answer(answer)
    metrics.reloaded("failed")
    metrics.request("/predict", 500, 0.1)
    names = {name for name in series() if "_created" not in name}
    assert names == {name for name in before if "_created" not in name}
    assert len(set(answer.advice.tolist())) > 2


def test_the_first_line_names_the_model_and_its_version(server, heads):
    assert re.match(r"serving clothes [0-9a-f]{12} on http://", server.line)
    assert server.line.split()[2] == saved_seal(heads / "first")[:12]


def saved_seal(folder):
    return json.loads((folder / "head.json").read_text())["sha256"]


def replaced_under_load(server, folder, heads, data, trigger=lambda: None):
    """Versions before and after a head is saved over the first, while requests go on: none is dropped or mixed."""
    outputs = wide(data.test[:8])
    right = {name: aty.load(heads / name).predict(outputs) for name in ("first", "second")}
    bodies = [json.dumps({"rows": [row]}) for row in rows(outputs)]

    def ask(place):
        status, answer = server.request("POST", "/predict", bodies[place % 8])
        assert status == 200
        return place % 8, json.loads(answer)

    first = ask(0)[1]["model_version"]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        early = [pool.submit(ask, place) for place in range(40)]
        aty.load(heads / "second").save(folder)
        trigger()
        deadline = time.monotonic() + 20
        while (second := ask(0)[1]["model_version"]) == first:
            assert time.monotonic() < deadline
        late = [pool.submit(ask, place) for place in range(16)]
    names = {first: "first", second: "second"}
    for place, answer in (future.result() for future in early + late):
        expected = right[names[answer["model_version"]]]
        np.testing.assert_allclose(answer["rows"][0]["proba"], expected.proba[place], atol=1e-6)
    assert {future.result()[1]["model_version"] for future in late} == {second}
    return first, second


def test_a_reload_drops_and_mixes_nothing_and_a_damaged_bundle_changes_nothing(heads, data, tmp_path):
    served = tmp_path / "served"
    shutil.copytree(heads / "first", served)
    server, body = Server(served, "--control"), {"rows": rows(wide(data.test[:1]))}
    first, second = replaced_under_load(server, served, heads, data, lambda: server.process.send_signal(signal.SIGHUP))
    assert server.metric(r'atypicality_reloads_total\{result="done"\}') == 1
    before, whole = server.predict(body), (served / "head.json").read_text()
    (served / "head.json").write_text("{}")
    status, answer = server.request("POST", "/v2/repository/models/clothes/load", "{}")
    assert status == 409
    assert "goes on answering" in json.loads(answer)["error"]
    assert server.predict(body) == before
    (served / "head.json").write_text(whole)
    aty.load(heads / "first").save(served)
    assert server.request("POST", "/v2/repository/models/clothes/load", "{}")[0] == 200
    assert server.predict(body)["model_version"] == first
    code, errors = server.stop()
    assert code == 0
    done, failed, again = errors.splitlines()
    assert done == f"atypicality: reloaded clothes: {first} -> {second}"
    assert failed.startswith("atypicality: the bundle was not reloaded: ")
    assert again == f"atypicality: reloaded clothes: {second} -> {first}"


def hang_up_early(process):
    """SIGHUP as soon as the process holds it back, long before it serves."""
    while not int(re.search(r"SigBlk:\s*(\w+)", Path(f"/proc/{process.pid}/status").read_text())[1], 16) & 1:
        time.sleep(0.001)
    process.send_signal(signal.SIGHUP)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="not on this system: /proc")
def test_a_signal_while_it_starts_waits_and_a_watched_bundle_is_reloaded_or_counts_as_failed(heads, data, tmp_path):
    link, served = tmp_path / "current", tmp_path / "served"
    shutil.copytree(heads / "first", served)
    link.symlink_to(served)
    server = Server(link, "--watch", "0.05", early=hang_up_early)

    def wait_for(result, number):
        deadline = time.monotonic() + 20
        while server.metric(rf'atypicality_reloads_total\{{result="{result}"\}}') != number:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    wait_for("done", 1)
    first, second = replaced_under_load(server, served, heads, data)
    wait_for("done", 2)
    link.unlink()
    wait_for("failed", 1)
    time.sleep(0.2)  # some more looks, which say nothing new
    link.symlink_to(heads / "first")
    wait_for("done", 3)
    wait_for("failed", 1)
    code, errors = server.stop()
    assert [first, second] == [saved_seal(heads / name)[:12] for name in ("first", "second")]
    words = "a saved head is a folder with a head.json"
    assert (code, errors.splitlines()) == (
        0,
        [
            f"atypicality: reloaded clothes: {first} -> {first}",
            f"atypicality: reloaded clothes: {first} -> {second}",
            f"atypicality: the bundle was not reloaded: no folder at '{link}'; {words}.",
            f"atypicality: reloaded clothes: {second} -> {first}",
        ],
    )


def test_behind_a_link_the_model_has_the_name_of_the_link(heads, tmp_path, monkeypatch):
    from atypicality.serving.service import make_app

    (tmp_path / "current").symlink_to(heads / "first")
    monkeypatch.chdir(heads / "first")
    for folder, name in ((tmp_path / "current", "current"), (heads / "first", "first"), (".", "first")):
        assert make_app(folder).state.model().split()[0] == name


def test_a_stop_answers_what_was_asked(heads, data):
    server = Server(heads / "first")
    body = json.dumps({"rows": rows(wide(data.test[:800]))})
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(server.request, "POST", "/predict", body) for _ in range(6)]
        while server.metric("process_open_fds") < 10 and not any(one.done() for one in asked):
            pass
        time.sleep(0.2)
        code, _ = server.stop()
        answers = [future.result() for future in asked]
    assert code == 0
    assert [(status, len(json.loads(answer)["rows"])) for status, answer in answers] == [(200, 800)] * 6


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["nowhere"], "no folder at 'nowhere'; a saved head is a folder with a head.json"),
        (["first", "--max-risk", "7"], "max_risk must be"),
        (["first", "--sha256", "0" * 64], "it is another head"),
        (["first", "--sha256", "0" * 12], "all 64 hexadecimal digits; got 12"),
        (["first", "--host", "256.0.0.1"], "atypicality: "),
    ],
)
def test_a_mistake_at_the_start_is_one_line_and_code_2(heads, capsys, monkeypatch, options, words):
    monkeypatch.chdir(heads)
    assert main(["serve", *options]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1


# Parts of it


@pytest.fixture(scope="module")
def judge(heads):
    from atypicality.serving.store import Judge

    return Judge(aty.load(heads / "first"))


def test_requests_that_are_answered_together_do_not_notice_each_other(judge, data):
    test = data.test
    spoilt = aty.ModelOutputs(np.full((2, 10), np.nan, np.float32), embeddings=test.embeddings[:2])
    narrow = aty.ModelOutputs(test.logits[:1, :9], embeddings=test.embeddings[:1])
    plain = [test[i : i + 2] for i in range(0, 20, 2)]
    found = judge.answers([*plain[:5], spoilt, narrow, wide(test[:3]), *plain[5:]])
    assert isinstance(found[5], ValueError)
    assert "rows 0, 1 hold NaN" in str(found[5])
    assert "10 columns" in str(found[6])
    assert found[7].proba.dtype == np.float64
    right = judge.head.predict(test[:20])
    together = np.concatenate([found[i].proba for i in (0, 1, 2, 3, 4, 8, 9, 10, 11, 12)])
    np.testing.assert_allclose(together, right.proba, atol=1e-6)


def test_a_head_whose_answers_depend_on_other_rows_is_not_served(heads):
    from atypicality.serving.store import Judge

    head = aty.load(heads / "first")
    head.recalibration_.class_prior = "estimate"
    with pytest.raises(ValueError, match="estimates its class mix from the rows cannot be served"):
        Judge(head)


def test_a_head_without_a_formula_is_served_by_its_methods(data):
    from atypicality.serving.store import Judge

    parts = (aty.NeighborAtypicality(), aty.TemperatureScaling())
    head = aty.ReliabilityHead(*parts).fit(train=data.train[:500], calibration=data.calibration[:600])
    found = Judge(head, max_risk=0.3).answers([data.test[:7], data.test[7:8]])
    right = head.predict(data.test[:8], max_risk=0.3)
    for name in ("label", "prediction_set", "accepted", "advice"):
        np.testing.assert_array_equal(np.concatenate([getattr(part, name) for part in found]), getattr(right, name))


def test_a_full_queue_refuses_and_recovers():
    import asyncio
    import threading

    from atypicality.serving.batching import Batcher, BusyError

    gate, seen = threading.Event(), []

    def answer(requests):
        gate.wait(10)
        seen.append([len(outputs) for outputs in requests])
        return [len(outputs) for outputs in requests]

    async def scene():
        batcher = Batcher(answer, max_waiting=10)
        tasks = [asyncio.create_task(batcher.submit(aty.ModelOutputs(np.zeros((n, 2))))) for n in (4, 3, 3)]
        await asyncio.sleep(0.05)
        with pytest.raises(BusyError, match="10 rows wait already, and at most 10 may"):
            await batcher.submit(aty.ModelOutputs(np.zeros((1, 2))))
        gate.set()
        assert await asyncio.gather(*tasks) == [4, 3, 3]
        assert await batcher.submit(aty.ModelOutputs(np.zeros((50, 2)))) == 50  # alone, it is not refused
        batcher.close()

    asyncio.run(scene())
    assert seen == [[4, 3, 3], [50]]


def test_randomised_sets_get_new_draws_from_request_to_request(data):
    from atypicality.serving.store import Judge

    sets = aty.SplitConformal(score="aps", randomized=True)
    head = aty.ReliabilityHead(prediction_sets=sets).fit(train=data.train[:1500], calibration=data.calibration[:800])
    judge = Judge(head)
    parts = [data.test[i : i + 1] for i in range(60)]
    found = np.concatenate([answer.prediction_set for answer in judge.answers(parts)])
    np.testing.assert_array_equal(found, head.predict(data.test[:60], first_row=1).prediction_set)  # 0 was the trial
