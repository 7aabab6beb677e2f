"""One formula, many runners: every kind of head says the same by its parts, NumPy blocks, other libraries and ONNX.

The reference is the chain of the parts' own methods on whole arrays: density, recalibration, sets. Runners differ from
it in the order of sums alone, so probabilities agree to one unit of their type and everything else is equal.
"""

import warnings
from functools import cache

import numpy as np
import pytest
from conftest import imported, needs, world_part
from numpy.testing import assert_allclose, assert_array_equal

import atypicality as aty
from atypicality import blocks
from atypicality.arrays import namespace
from atypicality.formula import advice_texts, guarded, moved
from atypicality.formula.density import is_triangular, whitened
from atypicality.formula.rows import PLACE_UP_TO, below_top, row_maxima, row_minima, row_tops, within
from atypicality.groups import QUADRANTS
from atypicality.head.prediction import missing_formulas
from atypicality.head.rarity import rarity_of
from atypicality.outputs import ModelOutputs
from atypicality.shipping.refusals import wide

K = 5
AWARE, PAPER = aty.AtypicalityAwareRecalibration, aty.AtypicalityAwareRecalibration.paper()
DENSITIES = {
    "tied": aty.GaussianAtypicality(),
    "full": aty.GaussianAtypicality("full"),
    "diagonal": aty.GaussianAtypicality("diagonal"),
    "marginal": aty.GaussianAtypicality(marginal=True),
    "full marginal": aty.GaussianAtypicality("full", marginal=True, shrinkage=0.1),
    "components": aty.GaussianAtypicality(n_components=3),
    "full components": aty.GaussianAtypicality("full", n_components=3),
    "diagonal components": aty.GaussianAtypicality("diagonal", n_components=3),
    "relative": aty.RelativeAtypicality(),
    "relative directions": aty.RelativeAtypicality(normalize="l2", shrinkage="oas"),
    "relative components": aty.RelativeAtypicality(n_components=3),
    "directions": aty.GaussianAtypicality(normalize="l2"),
    "full directions": aty.GaussianAtypicality("full", normalize="l2"),
    "residual": aty.GaussianAtypicality(n_components=3, residual=True),
    "relative residual": aty.RelativeAtypicality(n_components=3, residual=True),
    "neighbours": aty.NeighborAtypicality(),
    "neighbours by direction": aty.NeighborAtypicality(normalize="l2"),
    "neighbours by class": aty.NeighborAtypicality(2, reduction="kth", per_class=True),
    "neighbours by angle": aty.NeighborAtypicality(3, reduction="min", metric="cosine"),
}
RECALIBRATIONS = {
    "default": AWARE(),
    "diagonal mixing": AWARE(class_mixing="diagonal", strength=0.1, class_density=False),
    "no clipping": AWARE(extrapolation="none", strength=0.1),
    "no covariates": AWARE(covariates=(), class_mixing=False, strength=0.1),
    "margin alone": AWARE(covariates=("margin",), class_density=False, class_mixing=False),
    "class prior": AWARE(strength=0.1, class_prior=[0.1, 0.2, 0.3, 0.4, 0.0]),
    "temperature": aty.TemperatureScaling(),
    "vector": aty.VectorScaling(strength=0.01),
    "bias": aty.VectorScaling(scale=False),
    "ensemble": aty.EnsembleTemperatureScaling(),
    "by group": aty.GroupTemperatureScaling(3),
}
SETS = {
    "lac": aty.SplitConformal("lac"),
    "lac, empty sets": aty.SplitConformal("lac", nonempty=None),
    "aps": aty.SplitConformal("aps", nonempty=None),
    "aps, top class after": aty.SplitConformal("aps", nonempty="after"),
    "raps": aty.SplitConformal("raps"),
    "raps by grid": aty.AtypicalityAwareConformal("raps", n_groups=(1, 3), alpha=0.2),
    "saps by grid": aty.AtypicalityAwareConformal("saps", n_groups=(2, 1)),
    "aps of the paper": aty.AtypicalityAwareConformal("aps", n_groups=(2, 3), mode="paper"),
    "raps of the paper": aty.AtypicalityAwareConformal("raps", n_groups=(2, 2), mode="paper"),
    "conditional": aty.ConditionalConformal(),
    "conditional, coarse": aty.ConditionalConformal(0.2, cells=3, knots=1),
    "conditional, full corners": aty.ConditionalConformal(0.02, knots=3),
    "conditional, class rarity": aty.ConditionalConformal(groups="class rarity"),
    "conditional, groups": aty.ConditionalConformal(groups=("confidence", dict(enumerate("aabbc")))),
    "full sets": aty.SplitConformal("raps", 0.001, k_reg=1, penalty=0.1),
}
HEADS = (
    {f"density: {name}": (part, PAPER, SETS["raps by grid"]) for name, part in DENSITIES.items()}
    | {f"recalibration: {name}": ("auto", part, SETS["raps by grid"]) for name, part in RECALIBRATIONS.items()}
    | {f"sets: {name}": ("auto", AWARE(strength=0.1), part) for name, part in SETS.items()}  # accept some at a risk
    | {"default": ("auto", "auto", "auto"), "no atypicality": (None, "auto", "auto")}
    | {"two densities, one product for both lengths": ("auto", "auto", SETS["conditional"])}
)


def outputs_of(n, part, dtype=np.float32):
    """Rows with masked classes, ties, flat rows and far ends, beside ordinary ones."""
    world = world_part(part, n, atypical_noise=1.0)
    logits = world.logits.astype(dtype)
    logits[::5] = np.round(logits[::5])  # ties
    logits[1::17, 2] = -np.inf
    logits[3::50], logits[4::50] = 0, np.linspace(-300, 300, K)
    labels = np.where(np.isneginf(logits[np.arange(n), world.labels]), 0, world.labels)
    return ModelOutputs(logits, embeddings=world.embeddings.astype(np.float32), labels=labels)


RISKS = {}
"""The risk at which a fitted head is asked, by the head; others are asked without one."""


@cache
def fitted(name, seed=0):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        head = aty.ReliabilityHead(*HEADS[name])
        train = None if HEADS[name][0] is None else outputs_of(400, seed)
        head.fit(train=train, calibration=outputs_of(900, seed + 1))
        if name == "two densities, one product for both lengths":
            head.density_ = aty.GaussianAtypicality(normalize="l2").fit(train.embeddings, train.labels)
            head.refit(outputs_of(900, seed + 1))
            assert head.formula().density.roots is not None
    if name.startswith("sets") or name in ("no atypicality", "density: neighbours"):
        RISKS[head] = 0.3
    return head


def by_parts(head, outputs):
    """The answers of a head from its parts' methods on whole arrays."""
    rarity, extras = rarity_of(head, outputs)
    probs = head.recalibration_.predict_proba(outputs.logits, **extras)
    grid = {} if isinstance(head.prediction_sets_, aty.SplitConformal) else {"atypicality": rarity}
    found = {"proba": probs, "prediction_set": head.prediction_sets_.predict_set(probs, **grid)}
    found |= {"label": probs.argmax(axis=1), "confidence": np.minimum(probs.max(axis=1), 1.0)}
    if rarity is not None:
        found["quadrant"] = head.quadrants_.assign(found["confidence"], rarity)
        found |= {"atypicality": rarity, "atypicality_quantile": head.quantiles_(rarity)}
    beyond = np.zeros(len(outputs), bool) if rarity is None else rarity > head.quantiles_.values[-1]
    words = found.get("quadrant", np.where(found["confidence"] >= 1 - float(head.alpha), "reliable", "ambiguous"))
    words = np.where(found["confidence"] < 0.5, "untrustworthy", words)
    if head in RISKS:
        found["accepted"] = (found["confidence"] >= head.abstention_.threshold(RISKS[head])) & ~beyond
        beyond = ~found["accepted"]
    rows = zip(words, found["prediction_set"].sum(axis=1), beyond, strict=True)
    found["advice"] = np.array([advised(word, size, refused) for word, size, refused in rows])
    return found


def advised(quadrant, size, refused):
    """The table of the documentation, row by row."""
    if refused or quadrant == "untrustworthy" or size == 0 or size > 10 or size == K:
        return "ask a person"
    if size > 1:
        return f"choose among {size}"
    return {"ambiguous": "choose among 2", "extrapolation": "trust, but rare", "reliable": "trust"}[quadrant]


def in_words(found):
    """Numbers of quadrants and advice by their names."""
    words = {"advice": advice_texts(found["advice"], found["prediction_set"].sum(axis=1))}
    return found | words | ({"quadrant": np.array(QUADRANTS)[found["quadrant"]]} if "quadrant" in found else {})


def by_predict(head, outputs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answer = head.predict(outputs, max_risk=RISKS.get(head))
    known = ("proba", "prediction_set", "label", "confidence", "atypicality", "atypicality_quantile")
    known += ("advice", "accepted")
    found = {name: np.asarray(part) for name in known if (part := getattr(answer, name)) is not None}
    return found if answer.quadrant is None else found | {"quadrant": answer.quadrant}


def by_blocks(head, outputs):
    with blocks.settings(block_rows=7, n_threads=2):
        return by_predict(head, outputs)


def by_device(library):
    def run(head, outputs):
        there = {name: imported(library).asarray(np.array(getattr(outputs, name))) for name in ("logits", "embeddings")}
        return by_predict(head, ModelOutputs(**there))

    return run


def by_guarded_formula(head, outputs):
    """What a graph runs, by NumPy."""
    formula = moved(head.formula(RISKS.get(head)), wide)
    embeddings = None if formula.density is None else outputs.embeddings.astype(np.float64)
    with np.errstate(all="ignore"):
        verdict = guarded(namespace(outputs.logits), formula, outputs.logits, embeddings)
    assert verdict.known.all()
    found = {name: part for name, part in verdict._asdict().items() if part is not None and name != "known"}
    found |= {name: part[:, 0] for name, part in found.items() if name not in ("proba", "prediction_set")}
    return in_words(found)


def by_torch(head, outputs, wrap=lambda module, *_: module):
    torch = imported("torch")
    module = aty.ReliabilityModule.from_head(head, max_risk=RISKS.get(head))
    rows = [torch.from_numpy(np.array(outputs.logits))]
    rows += [] if module.n_features is None else [torch.from_numpy(np.array(outputs.embeddings))]
    tensors = vars(wrap(module, torch, rows)(*rows))
    assert bool(tensors["valid"].all())
    found = {name: part.numpy() for name, part in tensors.items() if part is not None and name != "valid"}
    return in_words(found)


def by_torch_compile(head, outputs):
    # one graph each; down to single operations the default head alone is traced here, and all are by an export
    backend = "aot_eager" if head is fitted("default") else "eager"
    return by_torch(head, outputs, lambda module, torch, _: torch.compile(module, fullgraph=True, backend=backend))


def by_torch_export(head, outputs):
    def export(module, torch, rows):
        few = tuple(part[:20] for part in rows)
        batch = {0: torch.export.Dim("batch")}
        return torch.export.export(module, few, dynamic_shapes=(batch,) * len(few)).module()

    return by_torch(head, outputs, export)


def by_onnx(head, outputs, tmp_path):
    runtime = imported("onnxruntime")
    head.export_onnx(tmp_path / "head.onnx", max_risk=RISKS.get(head), verify=False)
    session = runtime.InferenceSession(str(tmp_path / "head.onnx"), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    given = {node.name: getattr(outputs, node.name) for node in session.get_inputs()}
    found = dict(zip(names, session.run(names, given), strict=True))
    assert found.pop("valid").all()
    found["proba"] = found.pop("probabilities")
    return in_words(found)


def assert_same_answers(found, expected):
    assert set(found) == set(expected)
    unit = float(np.finfo(expected["proba"].dtype).eps)
    for name in ("proba", "confidence"):
        assert_allclose(found[name], expected[name], rtol=0, atol=max(unit, 1e-12), err_msg=name)
    for name in ("label", "prediction_set", "quadrant", "advice", "accepted"):
        if name in expected:
            assert_array_equal(found[name], expected[name], err_msg=name)
    if "atypicality" in expected:
        assert_allclose(found["atypicality"], expected["atypicality"], rtol=1e-9)
        # the scale steps from 0 to 1 / n at the least atypical held-out row, perhaps one rounding earlier or later
        assert_allclose(found["atypicality_quantile"], expected["atypicality_quantile"], rtol=0, atol=3e-3)


@pytest.mark.parametrize("runner", [by_predict, by_blocks], ids=["predict", "blocks"])
@pytest.mark.parametrize("name", HEADS)
def test_predict_is_the_chain_of_its_parts(name, runner):
    outputs = outputs_of(200, 2)
    assert_same_answers(runner(fitted(name), outputs), by_parts(fitted(name), outputs))


@pytest.mark.parametrize("library", ["torch", "array_api_strict"])
@pytest.mark.parametrize("name", HEADS)
def test_arrays_of_other_libraries_are_answered_on_their_device(name, library, as_device):
    outputs = outputs_of(200, 2)
    assert_same_answers(by_device(library)(fitted(name), outputs), by_parts(fitted(name), outputs))


@pytest.mark.parametrize("name", [name for name in HEADS if "neighbours" not in name])
def test_a_graph_says_the_same(name, tmp_path):
    outputs, head = outputs_of(200, 2), fitted(name)
    if name == "recalibration: class prior":  # a row may have no class of positive prior left
        outputs = outputs[np.isfinite(outputs.logits[:, :4]).any(axis=1)]
    expected = by_parts(head, outputs)
    assert_same_answers(by_guarded_formula(head, outputs), expected)
    assert_same_answers(by_onnx(head, outputs, tmp_path), expected)


@needs("torch")
@pytest.mark.parametrize("name", HEADS)
def test_a_torch_module_says_the_same(name, monkeypatch):
    monkeypatch.setattr("atypicality.formula.density.TILE", 50)  # several tiles of training rows
    outputs = outputs_of(200, 2)
    assert_same_answers(by_torch(fitted(name), outputs), by_parts(fitted(name), outputs))


@needs("torch")
@pytest.mark.parametrize("runner", [by_torch_compile, by_torch_export], ids=["compile", "export"])
@pytest.mark.parametrize("name", ["default", "no atypicality", "density: full", "density: neighbours"])
def test_a_torch_module_can_be_compiled_and_exported(name, runner):
    outputs = outputs_of(200, 2)
    assert_same_answers(runner(fitted(name), outputs), by_parts(fitted(name), outputs))


@needs("torch")
@pytest.mark.parametrize("name", ["directions", "full directions", "relative directions", "neighbours by direction"])
def test_a_graph_answers_rows_of_zeros_harmlessly(name, tmp_path):
    outputs, head, zero = outputs_of(20, 2), fitted(f"density: {name}"), np.arange(20) == 3
    rows = np.where(zero[:, None], np.float32(0), outputs.embeddings)
    with pytest.raises(ValueError, match="no row of zeros with normalize='l2'; row 3 is zero"):
        head.predict(ModelOutputs(outputs.logits, embeddings=rows))
    torch = imported("torch")
    found = aty.ReliabilityModule.from_head(head)(torch.asarray(outputs.logits), torch.asarray(rows))
    assert_array_equal(found.valid.numpy(), ~zero)
    assert_array_equal(np.isnan(found.atypicality.numpy()), zero)
    if "neighbours" not in name:
        head.export_onnx(tmp_path / "head.onnx", verify=False)
        session = imported("onnxruntime").InferenceSession(str(tmp_path / "head.onnx"))
        valid, rarity = session.run(["valid", "atypicality"], {"logits": outputs.logits, "embeddings": rows})
        assert_array_equal(valid, ~zero)
        assert_array_equal(np.isnan(rarity), zero)


def test_double_precision_stays_double():
    outputs = outputs_of(200, 2, np.float64)
    found = by_predict(fitted("default"), outputs)
    assert found["proba"].dtype == np.float64
    assert_same_answers(found, by_parts(fitted("default"), outputs))


# A user's own parts, each written in ten lines


class Distance:
    """A density by its method alone."""

    def fit(self, embeddings, labels):
        self.mean_ = embeddings.mean(axis=0)
        return self

    def atypicality(self, embeddings):
        return np.linalg.norm(embeddings - self.mean_, axis=1).astype(float)


class Blend:
    """A recalibrator by its methods alone."""

    def fit(self, logits, labels):
        self.share_ = np.mean(logits.argmax(axis=1) == labels)
        return self

    def predict_proba(self, logits):
        masked = np.where(np.isneginf(logits), -700, logits - logits.max(axis=1, keepdims=True))
        probs = np.exp(masked) / np.exp(masked).sum(axis=1, keepdims=True)
        return self.share_ * probs + (1 - self.share_) / probs.shape[1]


class TopTwo:
    """Prediction sets by their methods alone."""

    def fit(self, probs, labels):
        return self

    def predict_set(self, probs):
        return probs >= np.sort(probs, axis=1)[:, -2:-1]


def plug_in(**parts):
    from sklearn.base import BaseEstimator

    owned = {name: type(part.__name__, (part, BaseEstimator), {})() for name, part in parts.items()}
    head = aty.ReliabilityHead(**{"recalibration": aty.TemperatureScaling()} | owned)
    return head.fit(train=outputs_of(400, 0), calibration=outputs_of(900, 1))


@pytest.mark.filterwarnings("ignore:the advice")  # sets of two classes are right less often
@pytest.mark.parametrize(
    "parts",
    [{"density": Distance}, {"recalibration": Blend}, {"prediction_sets": TopTwo}],
    ids=["density", "recalibration", "prediction_sets"],
)
def test_a_users_own_part_plugs_in_by_its_methods(parts):
    head, outputs = plug_in(**parts), outputs_of(200, 2)
    assert missing_formulas(head)
    answer = by_predict(head, outputs)
    if "density" in parts:
        assert_allclose(answer["atypicality"], head.density_.atypicality(outputs.embeddings))
    if "recalibration" in parts:
        assert_allclose(answer["proba"], head.recalibration_.predict_proba(outputs.logits))
    if "prediction_sets" in parts:
        assert_array_equal(answer["prediction_set"].sum(axis=1) >= 2, True)
    assert "thresholds" in head.sizes_
    assert head.summary()


def test_a_method_that_is_overridden_is_used_and_not_the_formula_it_left_behind():
    class Turned(aty.GaussianAtypicality):
        def atypicality(self, embeddings):
            return -super().atypicality(embeddings)

    head = aty.ReliabilityHead(Turned(), aty.TemperatureScaling()).fit(outputs_of(400, 0), outputs_of(900, 1))
    found = by_predict(head, outputs_of(200, 2))["atypicality"]
    assert_allclose(found, head.density_.atypicality(outputs_of(200, 2).embeddings))


@pytest.mark.parametrize("columns", [128, 130, 200])
def test_a_triangular_whitening_is_the_whole_product(columns, rng):
    matrix = np.triu(rng.normal(size=(columns, columns)))
    assert is_triangular(matrix)
    assert not is_triangular(matrix.T)
    for n in (1, 40, 300):
        rows = rng.normal(size=(n, columns))
        bound = np.abs(rows) @ np.abs(matrix) * columns * np.finfo(float).eps
        assert (np.abs(whitened(np, rows, matrix, True) - rows @ matrix) <= 2 * bound).all()


@pytest.mark.parametrize("width", [1, 2, 10, PLACE_UP_TO, PLACE_UP_TO + 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_row_maxima_and_minima_are_those_of_numpy_to_the_bit(width, dtype, seed):
    rows = np.random.default_rng(seed).standard_normal((7, width)).astype(dtype)
    rows[1] = -np.inf
    rows[2, -1] = np.inf
    rows[3] = 0.25  # all equal
    rows[4, 0] = np.nan
    for values in (rows, np.asfortranarray(rows), rows[:0]):
        best, top = row_tops(np, values)
        assert_array_equal(row_maxima(np, values), values.max(axis=1, keepdims=True))
        assert_array_equal(row_minima(np, values), values.min(axis=1, keepdims=True))
        assert_array_equal(top, values.max(axis=1, keepdims=True))
        assert_array_equal(best, values.argmax(axis=1)[:, None])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_below_their_maximum_are_exact_differences(rng, dtype):
    rows = (1e3 * rng.standard_normal((20, 7))).astype(dtype)
    exact = rows.astype(np.float64) - rows.max(axis=1, keepdims=True).astype(np.float64)
    for top in (None, row_maxima(np, rows)):
        found = below_top(np, rows, top=top)
        assert found.dtype == np.float64
        assert_array_equal(found, exact)


@pytest.mark.parametrize("wide", [None, 3, 39])
def test_rows_that_spread_wider_than_reach_are_shrunk_to_it_and_others_stay(wide, rng):
    below = -2.0 * rng.random((40, 7))
    below[:, 2] = 0.0
    below[11, 4] = -2.0  # as wide as reach is no wider
    if wide is not None:
        below[wide] *= 100 / np.ptp(below[wide])
    given = below.copy()
    found = within(np, below, 2.0)
    others = np.arange(40) != wide
    assert_array_equal(found[others], given[others])
    if wide is not None:
        assert_allclose(found[wide], given[wide] / 50, rtol=1e-15)
    assert_array_equal(below, given)  # is not written on
    below[20, 1] = np.nan  # says nothing of other rows
    assert_array_equal(np.delete(within(np, below, 2.0), 20, axis=0), np.delete(found, 20, axis=0))
