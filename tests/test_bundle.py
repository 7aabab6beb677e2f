"""Bundles: what is loaded is what was saved, to the last bit; anything else is one error; no crash loses a head."""

import copy
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import bundle_cases as cases
import docs_cases
import numpy as np
import pytest
from conftest import needs

import atypicality as aty
from atypicality.head import ReliabilityHead
from atypicality.head.head import DENSITIES, PREDICTION_SETS, RECALIBRATIONS
from atypicality.shipping.bundle import BundleError, document, folder, load, save
from atypicality.stored import Record

MUTATIONS = 200
KILLS = 25


@pytest.fixture(scope="module")
def heads():
    return cases.every_head()


@pytest.fixture(scope="module")
def head():
    return cases.fitted(recalibration=cases.RECALIBRATIONS["aware"])


@pytest.fixture
def bundle(head, tmp_path):
    save(head, tmp_path / "bundle")
    return tmp_path / "bundle"


# What is loaded is what was saved


def test_every_class_of_the_closed_list_is_tried(heads):
    seen = {type(part) for head in heads.values() for part in vars(head).values()}
    listed = {*DENSITIES, *RECALIBRATIONS, *PREDICTION_SETS}
    assert listed - seen == {aty.AdaptiveTemperatureScaling}  # below: it needs torch to be fitted


def test_every_attribute_comes_back_to_the_last_bit(heads, tmp_path):
    for number, (name, head) in enumerate(heads.items()):
        sha256 = save(head, tmp_path / str(number))
        again = load(tmp_path / str(number), sha256=sha256)
        assert cases.difference(head, again) is None, name


ELSEWHERE = """
import json, sys
import bundle_cases as cases
import bundle_kills
from atypicality.shipping.bundle import load
folder, n_heads, n_kills = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
places = [f"{folder}/{number}" for number in range(n_heads)]
digests = [cases.digest(head, cases.asked(head)) for head in map(load, places)]
kills = bundle_kills.counts(f"{folder}/killed", n_kills)
events = set()
sys.addaudithook(lambda name, args: events.add(name))
for place in places:
    load(place)
print(json.dumps({"digests": digests, "kills": kills, "events": sorted(events)}))
"""


@pytest.fixture(scope="module")
def elsewhere(heads, tmp_path_factory):
    """What another process answers by the saved heads, what is left of a folder whose writers it kills, and what
    Python tells its auditors while it loads every head again."""
    path = tmp_path_factory.mktemp("elsewhere")
    for number, head in enumerate(heads.values()):
        save(head, path / str(number))
    places = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    one_thread = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # it forks
    command = [sys.executable, "-c", ELSEWHERE, str(path), str(len(heads)), str(KILLS)]
    environment = os.environ | {"PYTHONPATH": places} | one_thread
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(found.stdout)


def test_another_process_gives_the_same_answers(heads, elsewhere):
    expected = {name: cases.digest(head, cases.asked(head)) for name, head in heads.items()}
    assert dict(zip(heads, elsewhere["digests"], strict=True)) == expected


@needs("torch")
def test_a_network_comes_back(tmp_path):
    small = aty.AdaptiveTemperatureScaling(hidden=(8, 6), latent_dim=2, head=(4,), epochs=2)
    head = cases.fitted(recalibration=small, prediction_sets=aty.SplitConformal())
    save(head, tmp_path)
    assert cases.difference(head, load(tmp_path)) is None
    assert cases.digest(load(tmp_path), cases.asked(head)) == cases.digest(head, cases.asked(head))


def test_a_loaded_head_can_be_saved_and_refitted(bundle, head, tmp_path):
    again = load(bundle)
    assert save(again, tmp_path / "second") == json.loads((bundle / "head.json").read_text())["sha256"]
    newer = cases.outputs_of(9)
    assert cases.difference(cases.quiet(copy.deepcopy(head).refit, newer), cases.quiet(again.refit, newer)) in (
        None,
        "head.density_.statistics_",
    )


def test_bundles_of_the_first_format_still_load():
    # Written by `python tests/bundle_cases.py`: a change that breaks this breaks every bundle that users have.
    golden = Path(__file__).with_name("golden") / "bundle_format_1"
    head, expected = load(golden), json.loads((golden / "answers.json").read_text())
    found = cases.answers(head, cases.asked(head)[:8])
    np.testing.assert_allclose(found["proba"], expected["proba"], rtol=1e-9)  # matrix products differ by machine
    np.testing.assert_allclose(found["atypicality"], expected["atypicality"], rtol=1e-9)
    assert found["prediction_set"].tolist() == expected["prediction_set"]
    assert found["quadrant"].tolist() == expected["quadrant"]
    assert head.quadrants_.confidence == head.quadrants_.confidence_threshold_ < 0.9  # a quantile then, as it came out
    assert head.advice_ == {}  # not measured then; advice needs the confidence of today's heads
    said = cases.quiet(head.predict, cases.asked(head))
    assert (said.confidence[np.isin(said.advice, ["trust", "trust, but rare"])] >= 0.9).all()
    assert head.density_.normalize is None
    assert head.density_.residual is False
    assert head.density_choice_ is None
    assert head.recalibration_density_ is None
    assert head.recalibration_.errors_ is None  # not recorded then
    assert "no error" not in head.summary()


OTHER_VALUES = {  # of every parameter of every part, none of them the default
    aty.GaussianAtypicality: {
        "covariance": "full", "shrinkage": 0.25, "n_components": 2, "marginal": True, "precision": "float32",
        "normalize": "l2", "residual": True,
    },
    aty.RelativeAtypicality: {
        "shrinkage": 0.25, "n_components": 2, "precision": "float32", "normalize": "l2", "residual": True,
    },
    aty.NeighborAtypicality: {
        "n_neighbors": 3, "reduction": "kth", "metric": "cosine", "per_class": True, "normalize": "l2",
    },
    aty.TemperatureScaling: {},
    aty.VectorScaling: {"scale": False, "bias": False, "strength": 0.5},
    aty.GroupTemperatureScaling: {"n_groups": 3},
    aty.EnsembleTemperatureScaling: {},
    aty.AtypicalityAwareRecalibration: {
        "covariates": ("margin",), "class_scores": False, "class_density": True, "class_mixing": "diagonal",
        "terms": ("rank",), "strength": {"multiplier": 0.5}, "extrapolation": "none", "pseudo_rows": False,
        "class_prior": np.full(4, 0.25), "random_state": 7,
    },
    aty.ContentFreeCalibration: {},
    aty.AdaptiveTemperatureScaling: {
        "hidden": (8,), "latent_dim": 2, "head": (4,), "epochs": 2, "learning_rate": 0.5, "batch_size": 9,
        "validation_fraction": 0.25, "random_state": 7,
    },
    aty.SplitConformal: {
        "score": "aps", "alpha": 0.01, "nonempty": "after", "k_reg": 2, "penalty": 0.5, "randomized": True,
        "random_state": 7, "tuning_fraction": 0.25,
    },
    aty.AtypicalityAwareConformal: {
        "score": "lac", "alpha": 0.01, "nonempty": "after", "k_reg": 2, "penalty": 0.5, "randomized": True,
        "random_state": 7, "n_groups": (2, 3), "mode": "paper", "edge_fraction": 0.25,
    },
    aty.ConditionalConformal: {
        "alpha": 0.01, "cells": 5, "knots": 2, "bandwidth": 0.3, "edge_fraction": 0.25, "random_state": 7,
        "groups": ("confidence", "age", {0: "a", "b": 1}), "randomized": True,
    },
}  # fmt: skip
PARTS = {"density": DENSITIES, "recalibration": RECALIBRATIONS, "prediction_sets": PREDICTION_SETS}


@pytest.mark.parametrize(
    ("place", "part"),
    [(place, part) for place, parts in PARTS.items() for part in parts],
    ids=lambda part: getattr(part, "__name__", part),
)
def test_every_constructor_parameter_of_every_part_comes_back(head, tmp_path, place, part):
    defaults, others = part().get_params(), OTHER_VALUES[part]
    assert others.keys() == defaults.keys()
    for name, value in others.items():
        assert cases.difference(value, defaults[name]) is not None, name
        changed = copy.copy(head)
        setattr(changed, place, part(**{name: value}))
        save(changed, tmp_path / name)
        assert cases.difference(changed.get_params(), load(tmp_path / name).get_params()) is None, name


def test_every_constructor_parameter_of_the_head_comes_back(head, tmp_path):
    own = head.get_params(deep=False).keys() - PARTS.keys()
    assert own == {"acceptance", "alpha", "random_state"}  # tests/test_acceptance.py stores the first
    changed = copy.copy(head).set_params(alpha=0.01, random_state=7)
    save(changed, tmp_path)
    again = load(tmp_path)
    assert (again.alpha, again.random_state) == (0.01, 7)


def test_a_loaded_head_is_refitted_at_its_own_alpha(tmp_path):
    head = cases.quiet(ReliabilityHead(alpha=0.01).fit, cases.outputs_of(1), cases.outputs_of(2))
    head.save(tmp_path)
    assert cases.quiet(load(tmp_path).refit, cases.outputs_of(9)).prediction_sets_.alpha == 0.01


def test_a_parameter_that_an_older_bundle_lacks_is_what_its_parts_imply(tmp_path):
    save(cases.fitted(prediction_sets=aty.SplitConformal(alpha=0.25)), tmp_path)
    rewritten(tmp_path, lambda described: described["parameters"].pop("alpha"))
    assert load(tmp_path).alpha == 0.25
    rewritten(tmp_path, lambda described: described["parameters"].pop("random_state"))
    with pytest.raises(BundleError, match="missing or unknown: random_state"):
        load(tmp_path)


def test_a_density_with_work_put_off_is_solved_before_it_is_saved(tmp_path):
    rows = cases.outputs_of(1)
    density = aty.GaussianAtypicality().partial_fit(rows.embeddings, rows.labels)
    head = cases.fitted()
    head.density_ = density
    save(head, tmp_path)
    np.testing.assert_array_equal(load(tmp_path).density_.means_, density.means_)


def test_a_loaded_density_says_that_it_cannot_go_on(bundle, head):
    rows, density = cases.outputs_of(1), load(bundle).density_
    with pytest.raises(ValueError, match=r"loaded from a bundle.*Fit a new density"):
        density.partial_fit(rows.embeddings, rows.labels)
    for one, other in ((density, head.density_), (head.density_, density)):
        with pytest.raises(ValueError, match="loaded from a bundle"):
            one.merge(other)
    copy.deepcopy(density).fit(rows.embeddings, rows.labels)  # a new fit is no problem


# What can be saved


def test_only_fitted_heads_of_known_parts_are_saved(tmp_path, head):
    with pytest.raises(ValueError, match="not fitted"):
        save(ReliabilityHead(), tmp_path)
    odd = copy.copy(head)
    odd.recalibration_ = type("Mine", (aty.TemperatureScaling,), {})()
    with pytest.raises(TypeError, match=r"head\.recalibration_ is a Mine, which a bundle cannot hold"):
        save(odd, tmp_path)
    assert not any(tmp_path.iterdir())


def test_a_head_that_could_not_be_loaded_is_not_saved(tmp_path, head):
    odd = copy.deepcopy(head)
    odd.quantiles_.values[0] = np.nan
    with pytest.raises(ValueError, match=r"head\.quantiles_\.values must be finite"):
        save(odd, tmp_path)
    odd = copy.deepcopy(head)
    odd.prediction_sets_.n_classes_ = 5
    with pytest.raises(ValueError, match="has size 5 where other parts of the head have 4"):
        save(odd, tmp_path)


def test_somebody_elses_readme_is_left_alone(tmp_path, head):
    (tmp_path / "README.md").write_text("# My model\n")
    with pytest.raises(FileExistsError, match="was not written by a bundle"):
        head.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]


def test_a_folder_keeps_one_bundle_and_other_files(bundle, head):
    (bundle / "notes.txt").write_text("mine")
    (bundle / ".atypicality-0123456789abcdef.tmp").write_text("left by a crash")
    other = cases.fitted(seed=7)
    other.save(bundle)
    assert cases.difference(other, load(bundle)) is None
    names = sorted(path.name for path in bundle.iterdir())
    assert names[:3] == ["README.md", "head.json", "notes.txt"]
    assert len(names) == 4
    assert {oct(path.stat().st_mode & 0o777) for path in bundle.iterdir()} == {oct(0o666 & ~umask())}


def umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


# What cannot be loaded


def rewritten(bundle, change):
    """The bundle with its head's JSON changed and the hashes computed again."""
    content = json.loads((bundle / "head.json").read_text())
    change(content["head"])
    text, _ = document.compose(content["head"], content["tensors_sha256"], content["tensors_bytes"])
    (bundle / "head.json").write_bytes(text)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"format": 1', '"format": 2', "format 2, newer than 1.*Upgrade atypicality"),
        ('"format": 1', '"format": "1"', "must state its format"),
        ('"format": 1', '"format": 1, "format": 1', "repeated key, among 'format'"),
        ('"format": 1', '"format": NaN', "constant NaN"),
        ('"format": 1', '"format": 1e999', "too large for a float"),
        ('"format": 1', f'"format": {"7" * 5000}', "whole number of 5000 digits"),
        ('"format": 1', f'"format": {"[" * 50}1{"]" * 50}', "nested deeper than 40"),
        ('"format": 1', f'"format": {"[" * 500_000}', "nested deeper than 40"),
        ('"format": 1', '"format": 1, "more": 1', "must have the keys"),
        ('"format": 1', '"format": 1 // one', "is not JSON"),
        ('"library_version"', '"library_versioo"', "must have the keys"),
        ("AtypicalityAwareConformal", "AtypicalityAwareConforman", "does not match its own sha256"),
    ],
)
def test_json_is_read_strictly(bundle, old, new, message):
    text = (bundle / "head.json").read_text()
    assert old in text
    (bundle / "head.json").write_text(text.replace(old, new, 1))
    with pytest.raises(BundleError, match=message):
        load(bundle)


@pytest.mark.parametrize("text", ['"' + '\\"' * 2_000_000, '"' + "\\" * 2_000_001, "[],{}" * 400_000, '{"a":' * 30])
def test_hostile_text_takes_no_longer_than_its_length(bundle, text):  # a search that starts again would take hours
    (bundle / "head.json").write_text(text)
    with pytest.raises(BundleError, match="is not JSON"):
        load(bundle)


@pytest.mark.parametrize("text", ["", "[]", "7", '"head"', "\ufeff{}", "nul", "\x00"])
def test_other_json_is_no_bundle(bundle, text):
    (bundle / "head.json").write_text(text, encoding="utf-8")
    with pytest.raises(BundleError, match=r"head\.json (must|is not JSON)"):
        load(bundle)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h: h["fitted"]["density_"].update({"class": "Popen"}), "class GaussianAtypicality or .*got 'Popen'"),
        (lambda h: h["fitted"].update(density_=h["fitted"]["prediction_sets_"]), "got 'AtypicalityAwareConformal'"),
        (lambda h: h["fitted"].update(class_names_=["a", "a", "b", "c"]), "class_names_ must be distinct"),
        (lambda h: h["fitted"].update(class_names_=["a", "b", "c"]), "has size 3 where other parts .* have 4"),
        (lambda h: h["fitted"].update(class_names_=["a", "b", "c", 4]), "class_names_.3 must be text"),
        (lambda h: h["fitted"].update(quantiles_=None), "quadrants and quantiles come together"),
        (lambda h: h["fitted"].update(fingerprint_="<script>"), "fingerprint_ must match"),
        (lambda h: h["fitted"].update(extra=1), "exactly its own keys; missing or unknown: extra"),
        (lambda h: h["fitted"].pop("sizes_"), "exactly its own keys; missing or unknown: sizes_"),
        (lambda h: h["fitted"].update(n_classes_=True), "n_classes_ must be a whole number"),
        (lambda h: h["fitted"].update(n_classes_=10**12), "n_classes_ must be in"),
        (lambda h: h["fitted"]["recalibration_"]["fitted"].update(largest_spread_=-1.0), "largest_spread_ must be a f"),
        (lambda h: h["parameters"].update(random_state="0"), "random_state must be a whole number"),
        (lambda h: h["parameters"].update(density=None), "density=None must go without quantiles"),
        (lambda h: h["fitted"]["prediction_sets_"]["parameters"].update(alpha=1.0), "alpha must lie strictly between"),
        (lambda h: h["fitted"]["prediction_sets_"]["parameters"].update(alpha="1/0"), "alpha must be a fraction"),
        (lambda h: h["fitted"]["prediction_sets_"]["fitted"].update(k_reg_=None), "score 'raps' must have its para"),
        (lambda h: h["fitted"]["abstention_"]["fitted"].update(kept=7), "kept must say that it is a tensor"),
    ],
)
def test_meaning_is_checked_behind_right_hashes(bundle, change, message):
    rewritten(bundle, change)
    with pytest.raises(BundleError, match=message):
        load(bundle)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("quantiles_.values", lambda a: a[::-1], "must be strictly increasing"),
        ("quantiles_.levels", lambda a: a[:-1], "has size .* where other parts"),
        ("prediction_sets_.thresholds_", lambda a: a * np.nan, "must hold no NaN"),
        ("prediction_sets_.regions_", lambda a: a + 1, "regions must be numbered from 0"),
        ("prediction_sets_.too_few_", lambda a: np.full(a.shape, 2, np.uint8).view(bool), "must be 0 or 1"),
        ("prediction_sets_.grid_.atypicality_groups_.edges_", lambda a: a * np.inf, "must be finite"),
        ("density_.classes_", lambda a: a + 1, "density .* class.* 4 columns"),
        ("density_.classes_", lambda a: a[::-1], "must be sorted"),
        ("density_._solution.covariance", lambda a: a[:-1], "the covariance must have shape"),
        ("density_._solution.gaussians.centre", lambda a: a.astype(np.float32), "the type that precision= names"),
        ("density_.counts_", lambda a: -a, "must be positive and finite"),
        ("recalibration_.solution_.scores", lambda a: a.astype(np.complex64), "must be float64; got complex64"),
        ("recalibration_.calibration_shares_", lambda a: 2 * a, "be shares that sum to 1"),
        ("abstention_.errors", lambda a: a + 1000, "errors must be among the rows kept"),
    ],
)
def test_tensors_are_checked_behind_right_hashes(bundle, head, tmp_path, name, change, message):
    saved = cases.Saved.of(bundle, bundle)
    tensors = cases.load_tensors(saved.data)
    tensors[f"head.{name}"] = np.ascontiguousarray(change(tensors[f"head.{name}"]))
    saved.write_sealed(tmp_path / "hostile", json.loads(saved.text)["head"], tensors)
    with pytest.raises(BundleError, match=message):
        load(tmp_path / "hostile")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("table_", lambda a: a * np.nan, "must hold no NaN"),
        ("table_", lambda a: -1 - a, "must not be negative"),
        ("table_", lambda a: a[..., :-1], "has size .* where other parts"),
        ("table_", lambda a: np.concatenate([a, a]), "one table more than levels"),
        ("class_groups_", lambda a: a + 1, "classes must be in groups that have a name"),
        ("atypicality_edges_", lambda a: a[:-1], "there must be thresholds of shape"),
        ("confidence_edges_", lambda a: a + 1, r"must lie in \[0, 1\]"),
        ("confidence_edges_", lambda a: a[::-1], "must be strictly increasing"),
        ("few_", lambda a: ~a, "infinite where rows were too few"),
        ("expected_coverage_", lambda a: a[:-1], "every soft group must expect a coverage"),
        ("expected_coverage_", lambda a: a + 1, r"must lie in \[0, 1\]"),
        (None, lambda h: h.update(knots_=[2, 2, 2]), "knots_ must have 2 entries; got 3"),
        (None, lambda h: h.update(knots_=[50, 2]), "no more knots than cells"),
        (None, lambda h: h.update(knots_=[10**9, 2]), "no more knots than cells"),
        (None, lambda h: h.update(bandwidth_=0.0), "bandwidth_ must be a finite number in"),
        (None, lambda h: h.update(class_group_names_=["a"]), "where they are asked for, and only there"),
        (None, lambda h: h.update(soft_groups_=7), "exactly its own keys; missing or unknown: soft_groups_"),
    ],
)
def test_conditional_sets_are_checked_behind_right_hashes(tmp_path, name, change, message):
    save(cases.fitted(prediction_sets=aty.ConditionalConformal()), tmp_path / "bundle")
    saved = cases.Saved.of(tmp_path / "bundle", tmp_path / "bundle")
    head, tensors = json.loads(saved.text)["head"], cases.load_tensors(saved.data)
    if name is None:
        change(head["fitted"]["prediction_sets_"]["fitted"])
    else:
        place = f"head.prediction_sets_.{name}"
        tensors[place] = np.ascontiguousarray(change(tensors[place]))
    saved.write_sealed(tmp_path / "hostile", head, tensors)
    with pytest.raises(BundleError, match=message):
        load(tmp_path / "hostile")


def test_tensors_that_belong_nowhere_are_refused(bundle, tmp_path):
    saved = cases.Saved.of(bundle, bundle)
    tensors = cases.load_tensors(saved.data) | {"head.payload": np.zeros(3)}
    saved.write_sealed(tmp_path / "hostile", json.loads(saved.text)["head"], tensors)
    with pytest.raises(BundleError, match=r"belong to no part: head\.payload"):
        load(tmp_path / "hostile")


def test_only_regular_files_inside_the_folder_are_read(bundle, tmp_path):
    path = bundle / "head.json"
    path.rename(tmp_path / "outside.json")
    with pytest.raises(BundleError, match=r"head\.json is missing"):
        load(bundle)
    path.symlink_to(tmp_path / "outside.json")
    with pytest.raises(BundleError, match=r"head\.json must be a regular file"):
        load(bundle)
    path.unlink()
    os.mkfifo(path)  # opening it would wait for a writer for ever
    with pytest.raises(BundleError, match=r"head\.json must be a regular file"):
        load(bundle)
    for odd in (tmp_path / "nowhere", tmp_path / "outside.json"):
        with pytest.raises(
            BundleError, match=r"head\.json cannot be read|no folder at|is a file; a saved head is a folder"
        ):
            load(odd)
    rewritten_name = json.loads((tmp_path / "outside.json").read_text()) | {"tensors_sha256": "../" * 21 + "x"}
    rewritten_name.pop("sha256")
    path.unlink()
    path.write_text(json.dumps(rewritten_name | {"sha256": document._digest(rewritten_name)}))
    with pytest.raises(BundleError, match="tensors_sha256 must match"):
        load(bundle)


def test_sizes_are_limited_before_reading(bundle):
    with pytest.raises(BundleError, match=r"head\.json has \d+ bytes, and the limit is 100\. Raise max_json_bytes"):
        load(bundle, max_json_bytes=100)
    with pytest.raises(BundleError, match=r"tensors-.* should have \d+ bytes, .* limit is 100\. Raise max_bytes"):
        load(bundle, max_bytes=100)
    with pytest.raises(ValueError, match="max_bytes must be at least 1"):
        load(bundle, max_bytes=0)
    os.truncate(next(bundle.glob("tensors-*")), 2**40)  # a sparse file: reading it would need a terabyte
    with pytest.raises(BundleError, match=f"has {2**40} bytes"):
        load(bundle)


def test_a_bundle_beyond_the_limits_says_so_when_it_is_saved(head, tmp_path, monkeypatch):
    monkeypatch.setattr("atypicality.shipping.bundle.MAX_BYTES", 1000)
    with pytest.warns(UserWarning, match=r"load it with max_bytes=\d{4,} or more"):
        save(head, tmp_path)


def test_the_expected_head_can_be_pinned(bundle, tmp_path):
    sha256 = save(cases.fitted(seed=7), tmp_path / "other")
    with pytest.raises(BundleError, match=r"not the expected .* it is another head"):
        load(bundle, sha256=sha256)


@pytest.mark.parametrize("mutation", [cases.blind, cases.sealed], ids=["blind", "sealed"])
def test_mutated_bundles_are_refused_or_the_same_head(head, bundle, tmp_path, rng, mutation):
    # Without new hashes: the same head or an error. With them nothing can tell another head from this one but the
    # pinned hash; it must still be a head whose answers are answers, or a plain error of the data.
    save(cases.fitted(seed=7), tmp_path / "other")
    saved, target = cases.Saved.of(bundle, tmp_path / "other"), tmp_path / "mutated"
    outputs, seal = cases.asked(head)[:20], json.loads(saved.text)["sha256"]
    refused = 0
    for _ in range(MUTATIONS):
        mutation(saved, target, rng)
        try:
            found = load(target)
        except BundleError:
            refused += 1
            continue
        if mutation is cases.blind:
            assert cases.difference(head, found) is None
            continue
        assert answers_are_answers(found, outputs)
        try:
            assert cases.difference(head, load(target, sha256=seal)) is None
        except BundleError as error:
            assert "another head" in str(error)
    assert refused > MUTATIONS / 3


def answers_are_answers(head, outputs):
    try:
        answer = cases.quiet(head.predict, outputs)
    except ValueError:
        return True
    return answer.proba.shape == answer.prediction_set.shape == (20, 4)


def test_nothing_is_run_and_no_pickle_is_known(elsewhere):
    forbidden = {"exec", "compile", "subprocess", "socket", "pickle", "import", "ctypes", "marshal"}
    assert "open" in elsewhere["events"]
    assert not [event for event in elsewhere["events"] if event.split(".")[0] in forbidden]


# No crash loses a head


def test_a_crash_at_every_step_leaves_the_old_or_the_new_head(tmp_path, head, monkeypatch):
    other, steps = cases.fitted(seed=7), ("fsync", "replace", "unlink", "listdir")
    for limit in range(50):
        save(head, tmp_path / "bundle")
        calls = iter(range(limit))
        with monkeypatch.context() as patch:
            for name in steps:
                patch.setattr(folder.os, name, stopping(getattr(os, name), calls))
            try:
                save(other, tmp_path / "bundle")
                done = True
            except StoppedError:
                done = False
        found = load(tmp_path / "bundle")
        assert None in (cases.difference(head, found), cases.difference(other, found))
        if done:
            assert limit > 8
            assert cases.difference(other, found) is None
            return
    pytest.fail("the save never came to its end")


class StoppedError(Exception):
    pass


def stopping(call, calls):
    def wrapped(*args, **options):
        if next(calls, None) is None:
            raise StoppedError
        return call(*args, **options)

    return wrapped


def test_a_killed_writer_leaves_the_old_or_the_new_head(elsewhere):
    counts = elsewhere["kills"]
    assert counts["first"] + counts["second"] == KILLS
    assert counts["neither"] == 0


def test_a_reader_beside_a_writer_gets_the_old_or_the_new_head(bundle, head, monkeypatch):
    other, once = cases.fitted(seed=7), iter([None])
    from atypicality.shipping import bundle as package

    def overtaken(*args, **options):
        for _ in once:
            save(other, bundle)  # between the reading of the JSON file and that of the tensors
        return folder.read_tensors(*args, **options)

    monkeypatch.setattr(package, "read_tensors", overtaken)
    assert cases.difference(other, load(bundle)) is None


# What a class states of itself


def test_the_page_on_bundles_lists_the_classes_that_a_bundle_can_hold():
    page = (Path(__file__).parents[1] / "docs" / "bundle.md").read_text("utf-8")
    for place, parts in PARTS.items():
        row = re.search(rf"^\| {place.replace('_', ' ')} \| (.*) \|$", page, re.MULTILINE)[1]
        assert set(re.findall(r"`(\w+)`", row)) == {part.__name__ for part in parts}


def test_a_class_cannot_forget_a_parameter():
    with pytest.raises((ValueError, RuntimeError)) as caught:  # Python 3.11 wraps it

        class Mine(aty.TemperatureScaling):
            def __init__(self, power=1.0, flag=True):
                pass

            _stored = Record()

    assert "must state the kind of each of its parameters; it differs in ['power']" in str(
        caught.value.__cause__ or caught.value
    )


def test_a_class_of_the_same_name_and_a_subclass_are_not_on_the_list(head, tmp_path):
    for name in ("TemperatureScaling", "Mine"):
        odd = copy.copy(head)
        odd.recalibration_ = type(name, (aty.TemperatureScaling,), {})()
        with pytest.raises(TypeError, match=f"is a {name}, which a bundle cannot hold"):
            save(odd, tmp_path)


def test_attributes_that_older_bundles_lack_mean_what_they_state(bundle):
    def older(described):
        aware = described["fitted"]["recalibration_"]
        del aware["fitted"]["errors_"], aware["fitted"]["floor_"], aware["parameters"]["pseudo_rows"]

    rewritten(bundle, older)
    aware = load(bundle).recalibration_
    assert (aware.errors_, aware.floor_, aware.pseudo_rows) == (None, 0.0, False)


def test_a_head_whose_recalibration_read_another_density_is_refused(heads, tmp_path):
    found = {head.recalibration_density_ is None: head for head in heads.values()}
    for alone, head in found.items():
        save(head, tmp_path / str(alone))
        rewritten(tmp_path / str(alone), lambda described: described["fitted"].pop("reading_"))
    assert load(tmp_path / "True").reading_ == 2
    with pytest.raises(BundleError, match="whose recalibration read another density: fit the head again"):
        load(tmp_path / "False")


def test_a_new_set_method_is_one_file_and_two_lines(tmp_path):
    page = (Path(__file__).parents[1] / "docs" / "extending.md").read_text("utf-8")
    code = next(block.code for block in docs_cases.blocks(page) if "class GroupConformal" in block.code)
    package = tmp_path / "atypicality"
    shutil.copytree(Path(aty.__file__).parent, package)  # with their bytecode, so that one module is compiled anew
    (package / "conformal" / "by_group.py").write_text(code, "utf-8")
    exports = package / "conformal" / "__init__.py"
    for line in re.findall(r"^\+(.*)$", page, re.MULTILINE):
        exports.write_text(exports.read_text("utf-8") + line + "\n", "utf-8")
    assert f"{code.count(chr(10))} lines:" in page
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("bundle_extended.py")), str(tmp_path / "bundle")],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [tmp_path, Path(__file__).parent]))},
        capture_output=True,
        text=True,
        check=True,
    )
    saved, loaded = done.stdout.split()
    assert saved == loaded
