"""Write fuzz/corpus anew, from the public interface: files as they should be, and the damage that has been seen."""

import gzip
import io
import json
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import atypicality as aty
from atypicality.datasets import make_world
from atypicality.llm import TokenScores
from atypicality.llm.precomputed import write_scores
from fuzz.bundle import SIZES
from fuzz.outputs import NAMES
from fuzz.pieces import join
from fuzz.targets import CORPUS, TARGETS
from fuzz.texts import LABELS, PROMPT

Seeds = dict[str, bytes]

HEADS: dict[str, tuple[Any, Any, Any]] = {
    "temperature": (aty.GaussianAtypicality(), aty.TemperatureScaling(), aty.SplitConformal("raps")),
    "aware": (
        aty.GaussianAtypicality("full", shrinkage=0.1),
        aty.AtypicalityAwareRecalibration(),
        aty.SplitConformal("lac"),
    ),
    "groups": (
        aty.NeighborAtypicality(2),
        aty.GroupTemperatureScaling(2),
        aty.AtypicalityAwareConformal(n_groups=(2, 1)),
    ),
    "vector": (aty.GaussianAtypicality("diagonal"), aty.VectorScaling(strength=0.1), aty.SplitConformal("saps")),
}


def bundles() -> Seeds:
    """Heads of different parts; with one wrong number, and with hashes of something else."""
    found = {}
    for name, parts in HEADS.items():
        head, tensors = _saved(*parts)
        text = json.dumps(head).encode()
        found[name] = b"\0" + join(text, tensors)
    found["nan"] = b"\0" + join(text, tensors[:-8] + np.float64(np.nan).tobytes())
    found["list"] = b"\0" + join(b"[1, 2]", tensors)
    found["unsealed"] = b"\1" + join(text, tensors)
    found["deep"] = b"\1" + join(b"[" * 5000, b"")
    return found


def _saved(density: Any, recalibration: Any, prediction_sets: Any) -> tuple[Any, bytes]:
    train, calibration = (make_world(n, **SIZES, random_state=n).outputs() for n in (24, 60))
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so few rows that parts say so
        aty.ReliabilityHead(density, recalibration, prediction_sets).fit(train, calibration).save(folder)
        head = json.loads((Path(folder) / "head.json").read_text())["head"]
        return head, next(Path(folder).glob("tensors-*")).read_bytes()


def example() -> aty.ModelOutputs:
    """Outputs with every kind of part."""
    rows = make_world(12, **SIZES, random_state=0).outputs()
    names = ["cat", "dog", "été"]
    sites = np.array(["a", "bb"] * 6)
    return aty.ModelOutputs(
        rows.logits, embeddings=rows.embeddings, labels=rows.labels, class_names=names, attributes={"site": sites}
    )


def npy(array: Any) -> bytes:
    """An array as a .npy file."""
    stream = io.BytesIO()
    np.save(stream, np.asarray(array), allow_pickle=False)
    return stream.getvalue()


def members() -> Seeds:
    """Inputs of .npy files, one behind the other in the order of `NAMES`."""
    outputs = example()
    parts = dict(zip(NAMES, (outputs.logits, outputs.embeddings, outputs.labels, outputs.class_names), strict=False))
    whole = [npy(part) for part in parts.values()] + [npy(outputs.attributes["site"])]
    logits, rest = whole[0], whole[1:]
    return {
        "whole": join(*whole),
        "logits": join(logits),
        "names": join(logits, b"", npy(np.array(["dog", "cat"] * 6)), whole[3]),
        "bytes": join(logits, b"", npy(np.array([b"dog", b"\xff"] * 6)), whole[3]),
        "no-names": join(logits, b"", npy(np.array([b"dog", b"cat"] * 6)), npy(np.array([], "<U3"))),
        "float32": join(npy(np.asfortranarray(outputs.logits, np.float32)), *rest),
        "cut": join(logits[:-9], *rest),
        "objects": join(npy(outputs.logits).replace(b"'<f8'", b"'|O' "), *rest),
        "dates": join(npy(outputs.logits).replace(b"'<f8'", b"'<M8'"), *rest),
        "wrapped": join(
            npy(np.zeros((1, 3))).replace(b"(1, 3), }                      ", b"(4294967296, 4294967296), }    ")
        ),
        "negative": join(npy(outputs.logits).replace(b"(12, 3)", b"(-2, 3)"), *rest),
        "unclosed": join(npy(outputs.logits).replace(b"(12, 3), }", b"(12, 3,  ("), *rest),
        "escape": join(npy(outputs.logits).replace(b"'descr'", b"'d\\scr'"), *rest),
        "keys": join(npy(outputs.logits).replace(b"'shape'", b"1234567"), *rest),
        "text": join(logits, b"", b"", npy(np.array(["cat", "dog", "cow"])).replace(b"w\0\0\0", b"w\0\0\xff")),
    }


def archives() -> Seeds:
    """Archives as they are written, and members that are packed rightly."""
    plain = _file(".npz")
    return {"written": plain, "cut": plain[:-30], "empty": b"PK\5\6" + bytes(18)} | {
        f"packed-{name}": b"\0" + data for name, data in members().items()
    }


def safetensors() -> Seeds:
    """Files as they are written, and headers that lie."""
    plain = _file(".safetensors")
    size = int.from_bytes(plain[:8], "little")
    header, numbers = plain[8 : 8 + size], plain[8 + size :]
    lies = {
        "whole": header,
        "strings": header.replace(b'"[\\"class_names\\"', b'"[\\"labels\\"     '),
        "no-list": header.replace(b'"[\\"class_names\\", \\"attribute_site\\"]"', b'"7"'),
        "type": header.replace(b'"F64"', b'"I64"'),
        "brain": header.replace(b'"F64"', b'"BF16"'),
    }
    return (
        {"written": plain, "cut": plain[:-5], "long": (2**62).to_bytes(8, "little") + plain[8:]}
        | {f"packed-{name}": b"\0" + join(lie, numbers) for name, lie in lies.items()}
        | {"packed-noise": b"\0" + join(header, b"\xff" * len(numbers))}
    )


def parquets() -> Seeds:
    """Files as they are written, and with their schema or their end changed."""
    plain = _file(".parquet")
    return {
        "written": plain,
        "cut": plain[:-5],
        "json": plain.replace(b'{"class_names"', b'["class_names"'),
        "renamed": plain.replace(b"labels", b"lapels"),
    }


def _file(ending: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"outputs{ending}"
        example().save(path)
        return path.read_bytes()


def scores() -> Seeds:
    """Precomputed scores with and without labels, as JSON Lines and as Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    record = {"prompt": PROMPT, "log_probs": [None, -1.5], "n_tokens": 2, "ends": [2, 6], "tokens": ["Hi", " you"]}
    known = record | {"label_log_probs": {"good": -0.5, "bad": -1.5}}
    prompts = [PROMPT, *(PROMPT + label for label in LABELS)]
    values = [TokenScores.checked([-3.0, -1.5], ends=[2, 6]), *(TokenScores.checked([-3.0, -1.5, -1.0]),) * 2]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scores"
        write_scores(path, prompts, values)
        joined = path.read_bytes()
        pq.write_table(pa.Table.from_pylist([known]), path, compression="none")
        parquet = path.read_bytes()
    found = {"joined": joined, "parquet": parquet, "parquet-cut": parquet[:-5], "deep": b"[" * 5000, "latin": b"\xe9\n"}
    odd: dict[str, Any] = {
        "known": known,
        "words": known | {"label_log_probs": {"good": "high", "bad": None}},
        "huge": known | {"label_log_probs": {"good": 10**400, "bad": 0}},
        "nan": known | {"label_log_probs": {"good": float("nan"), "bad": 0}},
        "ends": known | {"log_probs": [-1, -2], "ends": "26"},
        "far": known | {"log_probs": [-1.0], "ends": [1e300], "tokens": None, "n_tokens": 1},
    }
    return found | {name: json.dumps(value).encode() + b"\n" for name, value in odd.items()}


def caches() -> Seeds:
    """A cache, one cut short, and lines that are none."""
    line = json.dumps({"key": "k", "log_probs": [-1.0, -2.0], "n_tokens": 3, "ends": [2, 6]}).encode()
    return {
        "whole": line + b"\n" + line + b"\n",
        "cut": line + b"\n" + line[:-9],
        "deep": b"[" * 5000 + b"\n" + line + b"\n",
        "ends": line.replace(b"[2, 6]", b'"26"') + b"\n",
        "noise": b"\xff\xfe\n7\nnull\n[]\n",
        "hashes": line.replace(b"}", b', "token_hashes": ["0a", "0b"]}') + b"\n",
        "few-hashes": line.replace(b"}", b', "token_hashes": "0a0"}') + b"\n",
    }


def answers() -> Seeds:
    """Answers of servers in both modes, honest ones and ones that have been seen to fail."""
    echo = {"tokens": ["Hi", " you", "!"], "token_logprobs": [None, -2.0, -0.1]}
    entries = [None, {"7": {"logprob": -2.0, "decoded_token": " you"}}]
    usage = {"prompt_tokens": 2}
    honest = json.dumps({"choices": [{"logprobs": echo}], "usage": usage}).encode()
    vllm = json.dumps({"choices": [{"prompt_logprobs": entries}], "usage": usage}).encode()
    return {
        "echo": b"\1" + honest,
        "vllm": b"\0" + vllm,
        "zeros": b"\1" + honest.replace(b"-2.0", b"0.0"),
        "words": b"\1" + honest.replace(b"-2.0", b'"a"'),
        "huge": b"\0" + vllm.replace(b"-2.0", b"-1" + b"0" * 400),
        "refused": b"\x09{}",
        "later": b"\x0d",
        "deep": b"\1" + b"[" * 5000,
        "nested": b"\1" + honest.replace(b"-2.0", b"[" * 900 + b"]" * 900),
        "gzip": b"\x11" + gzip.compress(honest, mtime=0),
        "not-gzip": b"\x11" + honest,
        "utf-16": b"\1" + honest.decode().encode("utf-16"),
    }


def connections() -> Seeds:
    """What servers send on a connection, honest ones and ones that never come to an end."""
    status, body, sized = b"HTTP/1.1 200 OK\r\n", b'{"a": 1}', b"Content-Length: 8\r\n"
    chunked = status + b"Transfer-Encoding: chunked\r\n\r\n"
    return {
        "plain": status + sized + b"\r\n" + body,
        "interim": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n"
        + status + sized + b"\r\n" + body,
        "chunks": chunked + b'4;x="y"\r\n{"a"\r\n4\r\n: 1}\r\n0\r\nX: y\r\n\r\n',
        "until-closed": status + b"Connection: close\r\n\r\n" + body,
        "old": b"HTTP/1.0 200 OK\r\n" + sized + b"\r\n" + body,
        "gzip": status + sized + b"Content-Encoding: gzip, gzip\r\n\r\n" + gzip.compress(body, mtime=0),
        "redirect": b"HTTP/1.1 307 Elsewhere\r\nLocation: http://example.org\r\n" + b"Content-Length: 0\r\n\r\n",
        "redirect-nowhere": b"HTTP/1.1 307 Elsewhere\r\nLocation: hn: http://example.org\r\nContent-Length: 0\r\n\r\n",
        "later": b"HTTP/1.1 429 Slow\r\nRetry-After: nan\r\nContent-Length: 4\r\n\r\n\x1b[2J",
        "two-lengths": status + sized + b"Content-Length: 9\r\n\r\n" + body,
        "endless-chunk": chunked + b"1;" + b"x" * 12_000,
        "endless-headers": status + b"X: y\r\n" * 2000,
        "unsized": chunked + b"fffffffffffffffffffff\r\n" + body,
        "upgrade": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        "no-http": b"SSH-2.0-OpenSSH\r\n",
    }  # fmt: skip


def templates() -> Seeds:
    """Templates, without their hole, with two, in another encoding, and empty."""
    texts = {
        "plain": "Review: {input}\nAnswer:\n",
        "none": "Review: {text}",
        "twice": "{input}{input}",
        "space": "{input} ",
    }
    return {name: text.encode() for name, text in texts.items()} | {
        "latin": "é {input}".encode("latin-1"),
        "crlf": b"{input}\r\n",
        "empty": b"",
    }


def tables() -> Seeds:
    """Texts in each format, whose number is the first byte."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"text": "good film", "label": "pos"}, {"text": "bad, film", "label": "neg"}]
    stream = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), stream, compression="none")
    return {
        "jsonl": b"\0" + b"\n".join(json.dumps(row).encode() for row in rows),
        "deep": b"\0" + b"[" * 5000,
        "csv": b"\1text,label\ngood film,pos\n",
        "short": b"\1text,label\ngood film\n",
        "long": b"\1text,label\na,b,c\n",
        "nul": b"\1text,label\na\0,b\n",
        "tsv": b"\2text\tlabel\ngood film\tpos\n",
        "parquet": b"\3" + stream.getvalue(),
        "parquet-cut": b"\3" + stream.getvalue()[:-5],
        "lines": b"\x86good film\nbad film\n",
        "latin": b"\x86\xe9\n",
    }


def columns() -> Seeds:
    """Tables of outputs: with a matrix, with text, and with what a table must not have."""
    return {
        "matrix": b"labels,logits_0,logits_1\n0,1.5,-inf\n1,0,2e3\n",
        "text": "\ufeffids,attribute.site\n007,\u00e9t\u00e9\n".encode(),
        "quoted": b'ids,attribute.note\n1,"a,\nb"\n2,""""\n\n',
        "numbers": b"0,1\n2,3\n",
        "blank": b"labels\n1\n\n2\n",
        "short": b"labels,ids\n1\n",
        "nul": b"labels\n\0\n",
        "latin": b"ids\n\xe9\n",
        "open": b'ids\n"a\n',
        "twice": b"labels,labels\n1,2\n",
    }


def bodies() -> Seeds:
    """Bodies of /predict."""
    rows = [{"id": "a", "logits": [1.0, 0.0], "embeddings": [0.5]}, {"id": "b", "logits": [0, 2], "embeddings": [1]}]
    table = {"logits": [[1.0, -1e400]], "class_names": ["cat", "dog"], "atypicality": [3]}
    return {
        "rows": json.dumps({"rows": rows}).encode(),
        "columns": json.dumps(table).encode(),
        "ragged": b'{"logits": [[1], [1, 2]]}',
        "deep": b"[" * 5000,
        "nested": b'{"logits": ' + b"[" * 40 + b"]" * 40 + b"}",
        "huge": b'{"logits": [[' + b"9" * 400 + b", 1]]}",
        "empty": b'{"rows": [{}]}',
    }


def inferences() -> Seeds:
    """Requests of the Open Inference Protocol."""

    def tensor(**more: Any) -> dict[str, Any]:
        return {"name": "logits", "shape": [2, 2], "datatype": "FP32"} | more

    size = {"binary_data_size": 16}
    names = {"name": "class_names", "shape": [2], "datatype": "BYTES", "parameters": {"binary_data_size": 10}}
    tail, texts = np.arange(4, dtype="<f4").tobytes(), b"\3\0\0\0cat\2\0\0\0do"
    binary = json.dumps({"inputs": [tensor(parameters=size)]}).encode()
    return {
        "plain": json.dumps({"inputs": [tensor(data=[1, 2, 3, 4])], "outputs": [{"name": "label"}]}).encode(),
        "nested": json.dumps({"inputs": [tensor(data=[[1, 2], [3, 4]])], "id": "x"}).encode(),
        "binary": b"\0" + join(binary, tail),
        "names": b"\0" + join(json.dumps({"inputs": [tensor(data=[1] * 4), names]}).encode(), texts[:-1]),
        "cut": b"\0" + join(binary, tail[:-1]),
        "over": b"\0" + join(binary, tail + b"x"),
        "claims": json.dumps({"inputs": [tensor(shape=[100, 2**39], data=[])]}).encode(),
        "type": json.dumps({"inputs": [tensor(datatype="INT8", data=[1] * 4)]}).encode(),
    }


SEEDS = {
    "csv": columns, "predict": bodies, "infer": inferences,
    "bundle": bundles, "npy": members, "npz": archives, "safetensors": safetensors, "parquet": parquets,
    "scores": scores, "cache": caches, "server": answers, "http": connections, "template": templates,
    "texts": tables,
}  # fmt: skip


def main() -> None:
    """Replace the corpus."""
    assert set(SEEDS) == set(TARGETS)
    for name, make in SEEDS.items():
        shutil.rmtree(CORPUS / name, ignore_errors=True)
        (CORPUS / name).mkdir(parents=True)
        for seed, data in make().items():
            (CORPUS / name / seed).write_bytes(data)


if __name__ == "__main__":
    main()
