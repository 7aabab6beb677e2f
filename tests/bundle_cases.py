"""What the tests of bundles share: a head for every class of the closed list, equality to the last bit, mutations."""

import dataclasses
import hashlib
import json
import os
import shutil
import warnings
from fractions import Fraction
from pathlib import Path

import numpy as np
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

import atypicality as aty
from atypicality.datasets import make_world
from atypicality.density.gaussian import ScoringOnly
from atypicality.head import ReliabilityHead
from atypicality.outputs import ModelOutputs
from atypicality.shipping.bundle.document import compose
from atypicality.shipping.bundle.folder import tensors_name

DENSITIES = {
    "tied": aty.GaussianAtypicality(),
    "tied32": aty.GaussianAtypicality(precision="float32", marginal=True),
    "full": aty.GaussianAtypicality("full", shrinkage=0.1),
    "diagonal": aty.GaussianAtypicality("diagonal", shrinkage=0.25),
    "projected": aty.GaussianAtypicality("full", n_components=3, shrinkage="oas", precision="float32"),
    "projected tied": aty.GaussianAtypicality(n_components=4),
    "ledoit": aty.GaussianAtypicality(shrinkage="ledoit-wolf"),
    "columns": aty.GaussianAtypicality(shrinkage="columns"),
    "relative": aty.RelativeAtypicality(),
    "residual": aty.GaussianAtypicality(n_components=2, residual=True),
    "relative32": aty.RelativeAtypicality(precision="float32", normalize="l2", n_components=3),
    "directions": aty.GaussianAtypicality(normalize="l2"),
    "neighbours": aty.NeighborAtypicality(3),
    "neighbouring directions": aty.NeighborAtypicality(3, normalize="l2"),
    "neighbours by class": aty.NeighborAtypicality(2, reduction="kth", metric="cosine", per_class=True),
}
RECALIBRATIONS = {
    "temperature": aty.TemperatureScaling(),
    "groups": aty.GroupTemperatureScaling(3),
    "vector": aty.VectorScaling(strength=0.01),
    "bias": aty.VectorScaling(scale=False, strength=0.01),
    "ensemble": aty.EnsembleTemperatureScaling(),
    "aware": aty.AtypicalityAwareRecalibration(),
    "paper": aty.AtypicalityAwareRecalibration.paper(),
    "prior": aty.AtypicalityAwareRecalibration(
        class_prior={0: 0.4, 1: 0.3, 2: 0.2, 3: 0.1}, class_mixing="diagonal", strength=0.1
    ),
    "margin": aty.AtypicalityAwareRecalibration(
        covariates=("margin",),
        class_density=False,
        strength={"multiplier": 1, "class_scores": 0.5},
        class_mixing=False,
        terms=(),
    ),
    "terms": aty.AtypicalityAwareRecalibration(strength=0.01),
}
PREDICTION_SETS = {
    "split": aty.SplitConformal("raps"),
    "lac": aty.SplitConformal("lac", alpha=Fraction(1, 10), nonempty="after"),
    "saps": aty.SplitConformal("saps", randomized=True, random_state=None),
    "too few": aty.SplitConformal("aps", alpha=0.001, nonempty=None),
    "regions": aty.AtypicalityAwareConformal(n_groups=[2, 2]),
    "conditional": aty.ConditionalConformal(),
    "conditional, too few": aty.ConditionalConformal(0.01, cells=5, knots=2, bandwidth=0.3, random_state=None),
    "conditional, groups": aty.ConditionalConformal(groups=("atypicality", {0: "a", 1: "b", 2: "b", 3: "a"})),
    "conditional, randomised": aty.ConditionalConformal(groups="class rarity", randomized=True),
    "paper sets": aty.AtypicalityAwareConformal("raps", n_groups=(3, 1), mode="paper", k_reg=1, penalty=0.1),
}


def quiet(call, *args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call(*args, **options)


def outputs_of(seed, n=400, **options):
    world = make_world(n, 4, temperature=2.0, atypical_noise=1.0, random_state=seed, **options)
    return world.outputs()


def fitted(seed=0, **parts):
    parts.setdefault("density", DENSITIES["tied"])
    parts.setdefault("recalibration", RECALIBRATIONS["temperature"])
    parts.setdefault("prediction_sets", PREDICTION_SETS["regions"])
    return quiet(ReliabilityHead(**parts).fit, outputs_of(seed + 1), outputs_of(seed + 2))


def every_head():
    """One head for every class of the closed list, in every shape that its state takes."""
    heads = {f"density {name}": fitted(density=part) for name, part in DENSITIES.items()}
    heads |= {f"recalibration {name}": fitted(recalibration=part) for name, part in RECALIBRATIONS.items()}
    heads |= {f"sets {name}": fitted(prediction_sets=part) for name, part in PREDICTION_SETS.items()}
    heads["defaults"] = quiet(ReliabilityHead().fit, outputs_of(1), outputs_of(2))
    heads["chosen"] = quiet(ReliabilityHead().fit, outputs_of(1), outputs_of(2, 1200))
    heads["acceptance"] = fitted(acceptance=aty.NeighborRatio(normalize=None))
    heads["without atypicality"] = quiet(ReliabilityHead(density=None).fit, None, outputs_of(2))
    heads["content-free"] = fitted(prediction_sets=aty.SplitConformal())
    heads["content-free"].recalibration_ = aty.ContentFreeCalibration().fit(outputs_of(3, 3).logits)
    given = outputs_of(2)
    given = ModelOutputs(given.logits, labels=given.labels, atypicality=-given.logits.max(axis=1))
    heads["atypicality given"] = quiet(ReliabilityHead(random_state=3).fit, None, given)
    names = np.array(["d", "b", "c", "a"])
    named = aty.GaussianAtypicality().fit(outputs_of(1).embeddings, names[outputs_of(1).labels])
    known = outputs_of(2)
    known = ModelOutputs(known.logits, embeddings=known.embeddings, labels=known.labels, class_names=names)
    heads["named classes"] = quiet(ReliabilityHead().fit, named, known)
    return heads


def asked(head, seed=5):
    """Outputs that suit a head."""
    outputs = outputs_of(seed, 150)
    if head.density_ is None and head.quantiles_ is not None:
        return ModelOutputs(outputs.logits, atypicality=-outputs.logits.max(axis=1))
    return ModelOutputs(outputs.logits, embeddings=outputs.embeddings, class_names=head.class_names_)


def answers(head, outputs):
    """Everything that a head says of some rows, by name; at a risk at which most heads accept a part of them."""
    found = quiet(head.predict, outputs, max_risk=0.6)
    named = {name: getattr(found, name) for name in ("proba", "prediction_set", "confidence", "label", "accepted")}
    rare = {name: getattr(found, name) for name in ("atypicality", "atypicality_quantile", "quadrant")}
    return named | {name: part for name, part in rare.items() if part is not None}


def digest(head, outputs):
    """A hash of everything that a head says."""
    found = hashlib.sha256()
    for name, part in sorted(answers(head, outputs).items()):
        found.update(f"{name} {part.dtype} {part.shape}".encode() + part.tobytes())
    return found.hexdigest()


def difference(first, second, path="head"):
    """Where two objects differ in a type, a shape, a layout or a bit; None if nowhere."""
    if isinstance(second, ScoringOnly):
        return None
    if path.endswith("class_prior") and isinstance(first, dict):  # stored as the vector that it stands for
        first = np.array([first[column] for column in sorted(first)])
    if isinstance(first, np.ndarray):
        same = isinstance(second, np.ndarray) and first.shape == second.shape and first.dtype.kind == second.dtype.kind
        if same and first.dtype.kind != "U":
            same = first.dtype == second.dtype and first.tobytes() == second.tobytes()
            same = same and np.isfortran(first) == np.isfortran(second)
        return None if same and (first == second).all() else path
    if isinstance(first, dict):
        if not isinstance(second, dict) or first.keys() != second.keys():
            return f"{path}: {set(first) ^ set(second)}"
        found = (difference(first[key], second[key], f"{path}.{key}") for key in first)
        return next(filter(None, found), None)
    if isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        if len(first) != len(second):
            return path
        pairs = enumerate(zip(first, second, strict=True))
        return next(filter(None, (difference(*pair, f"{path}.{index}") for index, pair in pairs)), None)
    if hasattr(first, "__dict__") and not isinstance(first, type):
        if type(first) is not type(second):
            return path
        one, other = (
            {name: part for name, part in vars(thing).items() if name != "_formula"} for thing in (first, second)
        )
        return difference(one, other, path)  # a formula is made of the rest, when it is first needed
    return None if first == second else f"{path}: {first!r} {second!r}"


@dataclasses.dataclass
class Saved:
    """A bundle in memory, and how to put changed ones on disk."""

    text: bytes
    data: bytes
    other_text: bytes
    other_data: bytes

    @classmethod
    def of(cls, folder, other):
        parts = []
        for place in (Path(folder), Path(other)):
            parts += [(place / "head.json").read_bytes(), next(place.glob("tensors-*")).read_bytes()]
        return cls(*parts)

    @property
    def name(self):
        return tensors_name(json.loads(self.text)["tensors_sha256"])

    def write(self, folder, text=None, data=None, name=None):
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        (folder / "head.json").write_bytes(self.text if text is None else text)
        (folder / (name or self.name)).write_bytes(self.data if data is None else data)

    def write_sealed(self, folder, head, tensors):
        """What an attacker writes who knows the format: right hashes over wrong contents."""
        data = tensors if isinstance(tensors, bytes) else save_tensors(tensors)
        sha256 = hashlib.sha256(data).hexdigest()
        self.write(folder, compose(head, sha256, len(data))[0], data, tensors_name(sha256))


def flip(data, rng, most=4):
    damaged = bytearray(data)
    for position in rng.integers(0, len(data), rng.integers(1, most + 1)):
        damaged[position] ^= 1 << int(rng.integers(8))
    return bytes(damaged)


def cut(data, rng):
    start = int(rng.integers(len(data)))
    return [data[:start], data[:start] + data[start + int(rng.integers(1, 64)) :], data + rng.bytes(9), b""][
        rng.integers(4)
    ]


def duplicate_key(text, rng):
    """Some key of some object, once more, with the same or another value."""
    lines = text.decode().splitlines()
    keys = [i for i, line in enumerate(lines) if line.rstrip().endswith(",") and '": ' in line and "{" not in line]
    chosen = lines[keys[rng.integers(len(keys))]]
    where = lines.index(chosen)
    again = chosen if rng.random() < 0.5 else chosen.split('": ')[0] + '": 7,'
    return "\n".join([*lines[:where], again, *lines[where:]]).encode()


def odd_constant(text, rng):
    numbers = [i for i, line in enumerate(text.decode().splitlines()) if line.rstrip(",")[-1:].isdigit()]
    lines = text.decode().splitlines()
    where = numbers[rng.integers(len(numbers))]
    head, _, tail = lines[where].rpartition(" ")
    odd = ["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000, "0x10", "1_0", "--1", "[" * 5000][rng.integers(9)]
    lines[where] = f"{head} {odd}{',' if tail.endswith(',') else ''}"
    return "\n".join(lines).encode()


def huge_shape(data, rng):
    """The header of a safetensors file with a shape, a type or an offset that the bytes do not have."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    name = sorted(header)[rng.integers(len(header))]
    change = [
        ("shape", [2**62, 4]),
        ("shape", [2**40]),
        ("shape", [0, 2**63]),
        ("shape", [-1]),
        ("shape", [1] * 70),
        ("dtype", "BF16"),
        ("dtype", "F4096"),
        ("data_offsets", [0, 2**60]),
        ("data_offsets", [8, 0]),
    ][rng.integers(9)]
    header[name] = dict(header[name]) | dict([change])
    text = json.dumps(header).encode()
    length = [len(text), 2**63, 2**40, 0][0 if rng.random() < 0.8 else rng.integers(1, 4)]
    return length.to_bytes(8, "little") + text + data[8 + size :]


def blind(saved, folder, rng):
    """A mutation that does not mend the hashes."""
    kind = rng.integers(9)
    if kind == 0:
        saved.write(folder, text=flip(saved.text, rng))
    elif kind == 1:
        saved.write(folder, data=flip(saved.data, rng))
    elif kind == 2:
        saved.write(folder, text=cut(saved.text, rng))
    elif kind == 3:
        saved.write(folder, data=cut(saved.data, rng))
    elif kind == 4:
        texts, datas = (saved.text, saved.other_text, saved.data), (saved.data, saved.other_data, saved.text)
        saved.write(folder, text=texts[rng.integers(3)], data=datas[rng.integers(3)])
    elif kind == 5:
        saved.write(folder, text=duplicate_key(saved.text, rng))
    elif kind == 6:
        saved.write(folder, text=odd_constant(saved.text, rng))
    elif kind == 7:
        saved.write(folder, data=huge_shape(saved.data, rng))
    else:
        odd_files(saved, folder, rng)


def odd_files(saved, folder, rng):
    """Links, pipes, folders and nothing where a regular file should be."""
    saved.write(folder)
    path = folder / ("head.json", saved.name)[rng.integers(2)]
    content = path.read_bytes()
    path.unlink()
    kind = rng.integers(5)
    if kind == 0:
        os.mkfifo(path)
    elif kind == 1:
        path.mkdir()
    elif kind == 2:
        path.symlink_to("/dev/zero")
    elif kind == 3:
        outside = folder.with_name("outside")
        outside.write_bytes(content)
        path.symlink_to(outside)


SCALARS = (
    None, True, False, 0, 1, -1, 2, 3, 2**31, 2**63, 10**18, 10**60, 0.5, -0.5, 1e308, -1e308, 5e-324, "", "auto",
    "inf", "nan", "os.system", "__class__", "../../etc/passwd", "\x00", "\ud800", "a" * 5000, "1/0", "1/3",
    "ReliabilityHead", "SplitConformal", "TemperatureScaling", "Solution", [], {}, [[]], [1, 2],
    {"tensor": "rows first"}, {"tensor": "columns first"}, {"class": "Popen"}, {"class": "GaussianAtypicality"},
)  # fmt: skip


def nodes(value, path=()):
    """Every place in a JSON value."""
    yield path
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from nodes(value[key], (*path, key))


def changed_json(head, rng):
    """The head's JSON with one value replaced, dropped, added, or exchanged with another."""
    head = json.loads(json.dumps(head))
    places = [path for path in nodes(head) if path]
    *way, last = places[rng.integers(len(places))]
    parent = head
    for key in way:
        parent = parent[key]
    kind = rng.integers(8)
    if kind == 0:
        parent.pop(last)
    elif kind == 1 and isinstance(parent, dict):
        parent[["extra", "", "class", "__init__", "tensor"][rng.integers(5)]] = SCALARS[rng.integers(len(SCALARS))]
    elif kind == 2 and isinstance(parent, list):
        parent.append(parent[last])
    elif kind == 3 and isinstance(parent[last], (int, float)):
        parent[last] = parent[last] * (-1, 0, 2, 1.5, 1e200)[rng.integers(5)]
    else:
        parent[last] = SCALARS[rng.integers(len(SCALARS))]
    return head


def changed_tensor(tensors, rng):
    """The tensors with one of them altered in values, shape, type, name or number."""
    tensors = dict(tensors)
    name = sorted(tensors)[rng.integers(len(tensors))]
    array = tensors[name].copy()
    kind = rng.integers(9)
    if kind == 0 and array.size:
        odd = (np.nan, np.inf, -np.inf, 1e300, -1.0, 0.0) if array.dtype.kind == "f" else (-1, 10**9, 0, 2, 127, -128)
        with np.errstate(over="ignore"):
            value = np.array(odd[rng.integers(6)], dtype=np.float64 if array.dtype.kind == "f" else np.int64)
            array.reshape(-1)[rng.integers(array.size)] = value.astype(array.dtype)
        tensors[name] = array
    elif kind == 1:
        tensors[name] = np.ascontiguousarray(array[::-1]) if array.ndim else array
    elif kind == 2:
        tensors[name] = np.ascontiguousarray(array.T) if array.ndim > 1 else array[:-1].copy()
    elif kind == 3:
        tensors[name] = array.astype((np.float32, np.float64, np.int64, np.uint8, np.bool_)[rng.integers(5)])
    elif kind == 4:
        del tensors[name]
    elif kind == 5:
        tensors[f"{name}x"] = tensors.pop(name) if rng.random() < 0.5 else array
    elif kind == 6:
        other = sorted(tensors)[rng.integers(len(tensors))]
        tensors[name], tensors[other] = tensors[other], tensors[name]
    elif kind == 7:
        tensors[name] = np.zeros((0, *array.shape[1:]), array.dtype)
    else:
        raw = bytearray(array.tobytes())
        if raw:
            raw[rng.integers(len(raw))] ^= 1 << int(rng.integers(8))
        tensors[name] = np.frombuffer(bytes(raw), array.dtype).reshape(array.shape)
    return tensors


def sealed(saved, folder, rng):
    """A mutation by somebody who then computes the hashes again."""
    head, tensors = json.loads(saved.text)["head"], load_tensors(saved.data)
    kind = rng.integers(5)
    if kind <= 1:
        head = changed_json(head, rng)
    elif kind <= 3:
        tensors = quiet(changed_tensor, tensors, rng)
    else:
        tensors = huge_shape(saved.data, rng) if rng.random() < 0.5 else flip(saved.data, rng)
    saved.write_sealed(folder, head, tensors)


def write_golden(folder):
    """A small bundle of this format with its answers, kept in the repository."""
    parts = {
        "recalibration": aty.VectorScaling(strength=0.01),
        "prediction_sets": aty.AtypicalityAwareConformal(n_groups=(2, 1)),
    }
    rows = outputs_of(2, 120)
    head = quiet(ReliabilityHead(aty.GaussianAtypicality(), **parts).fit, outputs_of(1, 80), rows)
    head.save(folder)
    found = {name: part[:8].tolist() for name, part in answers(head, asked(head)).items()}
    (folder / "answers.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    write_golden(Path(__file__).with_name("golden") / "bundle_format_1")
