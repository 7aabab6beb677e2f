import csv
import io
import json
from importlib.resources import files

import numpy as np
import pytest
from conftest import OUTPUTS, load_outputs
from scipy.special import softmax

import atypicality as aty
from atypicality.cli import main
from atypicality.datasets import make_world
from atypicality.evaluation.schema import TABLES, to_columns
from atypicality.paper import EXPERIMENTS, SETTINGS, Verdict, find_sources, jobs, reproduce
from atypicality.paper.claims import judge, margins
from atypicality.paper.readings import paper_values
from atypicality.paper.settings import match_folder
from atypicality.paper.tables import Cell, Table, make_tables, to_csv, to_latex, to_markdown, to_text

HIGHER = "ECE is higher in the most atypical group than in the most typical"
LOWER = "accuracy is lower in the most atypical group than in the most typical"
ECE_STEPS, ACCURACY_STEPS = "ECE rises at every step", "accuracy falls at every step"
SAME_CONFIDENCE = "at equal confidence the atypical half is more overconfident"
MEAN, LAST = "mean ECE over the groups is lower with AAR", "ECE of the most atypical group is lower with AAR"
MOST = "the gain is largest in the most atypical group"
ACCURATE, RARE_ACCURATE = "accuracy is higher with AAR", "accuracy of the rarest classes is higher with AAR"
RAREST = "the gain is largest in the rarest classes"

HOLDING = {  # what our numbers say over the seeds 0 to 9; nothing else may be marked as holding
    ("balanced", "small CNN / Fashion-MNIST, GMM"): {HIGHER, LOWER, ECE_STEPS, ACCURACY_STEPS, SAME_CONFIDENCE, MEAN},
    ("balanced", "small CNN / Fashion-MNIST, KNN"): {
        *(HIGHER, LOWER, ECE_STEPS, ACCURACY_STEPS, SAME_CONFIDENCE, MEAN, LAST)
    },
    ("imbalanced", "small CNN / Fashion-MNIST-LT, GMM"): {
        *(HIGHER, LOWER, SAME_CONFIDENCE, MEAN, LAST, ACCURATE, RARE_ACCURATE)
    },
    ("imbalanced", "small CNN / Fashion-MNIST-LT, KNN"): {
        *(HIGHER, LOWER, SAME_CONFIDENCE, MEAN, LAST, ACCURATE, RARE_ACCURATE)
    },
    ("conformal", "small CNN / Fashion-MNIST, GMM"): {
        "APS covers on average",
        "AA-APS is nearer to its promise there",
        "RAPS covers on average",
        "RAPS under-covers atypical, unconfident inputs",
        "AA-RAPS is nearer to its promise there",
    },
    ("subgroups", "small CNN / Fashion-MNIST, GMM"): set(),
    ("subgroups", "small CNN / Fashion-MNIST-LT, GMM"): {
        "the worst group is more accurate with AAR",
        "the gap in accuracy is smaller with AAR",
    },
    ("temperatures", "small CNN / Fashion-MNIST, GMM"): {
        "the temperature of the most atypical group is above that of the most typical"
    },
    ("class-scores", "small CNN / Fashion-MNIST-LT, GMM"): {"class scores correlate with class atypicality"},
    ("theory", "simulation"): {
        "theorem 1: overconfidence rises at every step of atypicality",
        "theorem 1: it rises more for smaller training sets",
        "theorem 2, norm 0.5, squared: an aware temperature is never worse",
        "theorem 2, norm 0.5, cross-entropy: an aware temperature is never worse",
        "theorem 2, norm 2, squared: an aware temperature is never worse",
    },
}
HOLDING_CIFAR = {
    ("balanced", "WideResNet28 / CIFAR10, GMM"): {HIGHER, LOWER, SAME_CONFIDENCE, MEAN, LAST, MOST},
    ("balanced", "WideResNet28 / CIFAR10, KNN"): {HIGHER, LOWER, SAME_CONFIDENCE, MEAN, LAST, MOST},
    **{
        ("imbalanced", f"wrn28-4 / CIFAR10-LT (paper: ResNet18), {estimator}"): {
            *(HIGHER, LOWER, ECE_STEPS, ACCURACY_STEPS, SAME_CONFIDENCE, MEAN, LAST, MOST),
            *(ACCURATE, RARE_ACCURATE, RAREST),
        }
        for estimator in ("GMM", "KNN")
    },
    ("conformal", "WideResNet28 / CIFAR10, GMM"): {
        "APS covers on average",
        "AA-APS is nearer to its promise there",
        "RAPS under-covers atypical, unconfident inputs",
    },
    ("temperatures", "WideResNet28 / CIFAR10, GMM"): {
        "the temperature of the most atypical group is above that of the most typical"
    },
    ("class-scores", "wrn28-4 / CIFAR10-LT (paper: ResNet18), GMM"): {"class scores correlate with class atypicality"},
}


def holding(found):
    held = {(name, verdict.where): set() for name, verdicts in found.verdicts.items() for verdict in verdicts}
    for name, verdicts in found.verdicts.items():
        for verdict in verdicts:
            assert verdict.n_seeds == 10
            if verdict.verdict == "holds":
                assert verdict.n_true == 10
                held[name, verdict.where].add(verdict.statement)
    return held


@pytest.fixture(scope="module")
def bundled(tmp_path_factory):
    return reproduce("all", out=tmp_path_factory.mktemp("bundled"))


@pytest.fixture(scope="module")
def cifar(tmp_path_factory):
    load_outputs("cifar10-wrn28-10", "test")  # skips by name where the folder is absent
    names = [name for name in EXPERIMENTS if name not in ("llm", "subgroups", "theory")]
    chosen = tmp_path_factory.mktemp("chosen")
    for folder in ("cifar10-wrn28-10", "cifar10lt-wrn28-4"):
        (chosen / folder).symlink_to(OUTPUTS / folder)
    return reproduce(names, outputs=chosen, out=tmp_path_factory.mktemp("cifar"))


def test_claims_marked_as_holding_hold_for_ten_seeds_on_the_bundled_outputs(bundled):
    assert holding(bundled) == HOLDING


def test_claims_marked_as_holding_hold_for_ten_seeds_on_cifar(cifar):
    assert holding(cifar) == HOLDING_CIFAR


def reference_ece(probs, labels):
    """Ten bins (lo, hi] of confidence, written without the package."""
    confidence, right = probs.max(axis=1), probs.argmax(axis=1) == labels
    place = np.ceil(confidence * 10).astype(int)
    return sum(
        abs(confidence[place == b].sum() - right[place == b].sum()) / labels.size
        for b in range(11)
        if (place == b).any()
    )


def test_bundled_numbers_against_a_plain_loop(bundled):
    train, calibration, test = aty.datasets.load_fashion_mnist()
    pair = (calibration, test)
    logits, labels = (np.concatenate([getattr(part, name) for part in pair]) for name in ("logits", "labels"))
    density = aty.GaussianAtypicality().fit(train.embeddings, train.labels)
    rarity = np.concatenate([density.atypicality(part.embeddings) for part in pair])
    errors = {"ts": [], "aar": [], "uncalibrated": []}
    for seed in range(10):
        chosen = np.isin(np.arange(10000), np.random.default_rng(seed).permutation(10000)[:5000])
        known, new = (logits[chosen], labels[chosen]), (logits[~chosen], labels[~chosen])
        scaling = aty.TemperatureScaling().fit(*known)
        aware = aty.AtypicalityAwareRecalibration.paper().fit(*known, atypicality=rarity[chosen])
        last = rarity[~chosen] > np.quantile(rarity[~chosen], 0.8)
        answers = {
            "uncalibrated": softmax(new[0].astype(np.float64), axis=1),
            "ts": scaling.predict_proba(new[0]),
            "aar": aware.predict_proba(new[0], atypicality=rarity[~chosen]),
        }
        for name, probs in answers.items():
            errors[name].append(reference_ece(probs[last].astype(np.float64), new[1][last]))
    [table] = [t for t in bundled.tables["balanced"] if (t.atypicality, t.metric) == ("GMM", "ece")]
    for name, values in errors.items():
        cell = table.cells[("1",), name]
        # softmax in float32 against float64 moves a confidence by 1e-7; one row over a bin edge would move ECE by 1e-3
        assert cell.ours == pytest.approx(np.mean(values), abs=2e-4)
        assert cell.error == pytest.approx(np.std(values, ddof=1) / np.sqrt(10), abs=2e-4)


def test_cifar_rows_stand_beside_the_papers(cifar):
    for estimator in ("GMM", "KNN"):
        [table] = [t for t in cifar.tables["balanced"] if (t.atypicality, t.metric) == (estimator, "ece")]
        printed = paper_values("balanced", match_folder("cifar10-wrn28-10").setting, estimator)
        assert table.rows == [("0.2",), ("0.4",), ("0.6",), ("0.8",), ("1",), ("all",)]
        for quantile in table.rows[:-1]:
            for method in ("uncalibrated", "ts", "aar"):
                cell = table.cells[quantile, method]
                assert (cell.paper, cell.paper_error) == printed["ece", quantile, method]
                assert cell.difference == cell.ours - cell.paper
                assert abs(cell.difference) < 0.03  # another training run of the same network
    assert {t.dataset for t in cifar.tables["imbalanced"]} == {"CIFAR10-LT"}
    assert not any("CIFAR10:" in line for line in cifar.missing["balanced"])


def test_a_seed_is_one_split_of_compare(tmp_path):
    found = reproduce("class-scores", seeds=[3], out=tmp_path)
    source = find_sources(None)[1]
    same = aty.compare(["aar"], source.data.test, train=source.data.train, n_splits=1, random_state=3)
    [table] = found.tables["class-scores"]
    for row, info in zip(same.table("class_scores"), same.table("class_info"), strict=True):
        assert table.cells[(info["name"],), "aar"].ours == pytest.approx(row["value"], abs=1e-9)
        assert table.cells[(info["name"],), "class atypicality"].ours == info["class_atypicality"]


# the paper's numbers


def test_every_number_of_the_papers_tables_is_found_once():
    for name in ("balanced", "imbalanced", "llm", "conformal"):
        text = (files("atypicality.paper") / "data" / f"{name}.csv").read_text(encoding="utf-8")
        experiment = EXPERIMENTS[name]
        settings = [setting for setting in SETTINGS if setting.kind in experiment.kinds]
        found = [paper_values(name, setting, estimator) for setting in settings for estimator in experiment.estimators]
        only_in_text = 4 if name == "conformal" else 0
        assert sum(map(len, found)) == len(text.splitlines()) - 1 + only_in_text
        if experiment.datasets:
            assert {setting.dataset for setting, values in zip(settings, found, strict=True) if values} == {
                *experiment.datasets
            }
        else:
            assert all(found)


def test_conformal_groups_are_read_as_confidence_then_atypicality():
    setting = match_folder("imagenet-resnet50").setting
    printed = paper_values("conformal", setting, "GMM")
    for rarity in "123456":  # confident predictions have small sets at every level of atypicality
        assert printed["set_size", ("6", rarity), "aps"][0] < printed["set_size", ("1", rarity), "aps"][0] / 5
    assert printed["set_size", ("all", "all"), "aps"] == (21.3, None)


def test_skin_tones_of_the_text():
    printed = paper_values("subgroups", match_folder("fitzpatrick17k-resnet34").setting, "GMM")
    assert printed["accuracy", ("worst",), "aar"] == (0.69, None)
    assert printed["ece", ("best",), "group-ts"] == (0.062, None)


@pytest.mark.parametrize(
    ("folder", "dataset", "model"),
    [
        ("cifar10-wrn28-10", "CIFAR10", "WideResNet28"),
        ("cifar10-resnet50", "CIFAR10", "resnet50"),
        ("cifar10lt-wrn28-4", "CIFAR10-LT", "wrn28-4"),
        ("cifar100-lt", "CIFAR100-LT", "another model"),
        ("trec", "TREC", "another model"),
        ("imagenetlt-resnext50-pb", "ImageNet-LT", "ResNext50(+P.B.)"),
    ],
)
def test_folders_and_rows(folder, dataset, model):
    match = match_folder(folder)
    assert (match.setting.dataset, match.model) == (dataset, model)


def test_other_folders_have_no_row():
    assert match_folder("my-network") is None
    assert len({setting.folder for setting in SETTINGS}) == len(SETTINGS)


# outputs on disk


def write_model(folder, seed, *, imbalance=1.0, calibration=False, n=600):
    folder.mkdir(parents=True)
    world = make_world(3 * n, 4, temperature=2.0, class_imbalance=imbalance, atypical_noise=0.5, random_state=seed)
    attributes = {"tone": np.where(np.arange(n) % 3 == 0, "dark", "light"), "age": np.linspace(20, 80, n)}
    for place, name in enumerate(["train", "test", "calibration"][: 3 if calibration else 2]):
        part = world.take(slice(place * n, (place + 1) * n)).outputs()
        aty.ModelOutputs(part.logits, embeddings=part.embeddings, labels=part.labels, attributes=attributes).save(
            folder / f"{name}.npz"
        )


def test_kinds_of_unknown_models(tmp_path, seed):
    write_model(tmp_path / "even", seed)
    write_model(tmp_path / "tailed", seed, imbalance=20)
    (tmp_path / "empty").mkdir()
    (tmp_path / ".tailed.npz.k2j4h5.npz").write_bytes(b"left by a crash")
    assert [(source.name, source.kind) for source in find_sources(tmp_path)] == [
        ("even", "balanced"),
        ("tailed", "imbalanced"),
    ]
    assert [source.name for source in find_sources(tmp_path / "even")] == ["even"]


def test_missing_says_what_to_put_where(tmp_path, seed):
    write_model(tmp_path / "cifar10-wrn28-10", seed)
    (tmp_path / "cifar10-wrn28-10" / "train.npz").rename(tmp_path / "elsewhere")
    found = reproduce("balanced", outputs=tmp_path, seeds=[0], out=tmp_path / "out")
    assert found.tables["balanced"] == []
    assert (
        f"WideResNet28 / CIFAR10, KNN: put train.npz (embeddings, labels) into {tmp_path / 'cifar10-wrn28-10'}."
        in found.missing["balanced"]
    )
    [line] = [line for line in found.missing["balanced"] if line.startswith("ResNet50 / ImageNet")]
    assert f"test.npz (logits, embeddings, labels) into {tmp_path / 'imagenet-resnet50'}/. Model: torchvision" in line
    assert "Nothing to run" in found.to_text()


def test_a_validation_split_is_used_once_as_it_is(tmp_path, seed):
    write_model(tmp_path / "cifar10lt-resnet18", seed, imbalance=10, calibration=True)
    found = reproduce("imbalanced", outputs=tmp_path, out=tmp_path / "out", methods=["aware"])
    folder = tmp_path / "cifar10lt-resnet18"
    calibration, test = (aty.ModelOutputs.load(folder / f"{part}.npz") for part in ("calibration", "test"))
    scaling = aty.TemperatureScaling().fit(calibration.logits, calibration.labels)
    expected = aty.metrics.ece(scaling.predict_proba(test.logits), test.labels)
    table = found.tables["imbalanced"][0]
    assert table.cells[("all",), "ts"].ours == pytest.approx(expected, abs=1e-12)
    assert np.isnan(table.cells[("all",), "ts"].error)
    assert "aware" in table.methods
    assert {verdict.n_seeds for verdict in found.verdicts["imbalanced"]} == {1}
    assert table.cells[("1",), "aar"].paper == 0.034


def test_subgroups_by_path_with_a_model_per_split(tmp_path, seed):
    for split in range(3):
        write_model(tmp_path / "fitzpatrick17k-resnet18" / f"split-{split}", seed + split, calibration=True)
    found = reproduce("subgroups", outputs=tmp_path / "fitzpatrick17k-resnet18", out=tmp_path / "out")
    accuracy, error = sorted(found.tables["subgroups"], key=lambda table: table.metric)
    assert accuracy.rows == [("dark",), ("light",), ("worst",), ("best",), ("gap",), ("all",)]
    assert {verdict.n_seeds for verdict in found.verdicts["subgroups"]} == {3}
    assert error.cells[("worst",), "aar"].paper == 0.072
    for method in accuracy.methods:  # by their meaning
        worst, best, gap = (accuracy.cells[(row,), method].ours for row in ("worst", "best", "gap"))
        assert gap == pytest.approx(best - worst)
        groups = [accuracy.cells[(row,), method].ours for row in ("dark", "light")]
        assert worst <= min(groups)
        assert best >= max(groups)
    assert accuracy.cells[("worst",), "ts"].ours == accuracy.cells[("worst",), "group-ts"].ours  # ranks are kept


def test_language_models_from_files(tmp_path, seed):
    world = make_world(1200, 3, temperature=3.0, random_state=seed)
    outputs = aty.ModelOutputs(world.logits, labels=world.labels, atypicality=world.atypicality)
    outputs.save(tmp_path / "trec.npz")
    without = reproduce("llm", outputs=tmp_path, seeds=[0, 1], out=tmp_path / "out")
    assert without.tables["llm"][0].methods == ("uncalibrated", "ts", "aar")
    assert any("add content_free.npz" in note for note in without.notes["llm"])
    aty.ModelOutputs(np.zeros((3, 3))).save(tmp_path / "trec.content_free.npz")
    found = reproduce("llm", outputs=tmp_path, seeds=[0, 1], out=tmp_path / "out")
    table = found.tables["llm"][0]
    assert table.rows == [("0.25",), ("0.5",), ("0.75",), ("1",), ("all",)]
    assert table.cells[("0.25",), "content-free"].paper is not None
    assert not found.notes["llm"]


# interruption


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path, seed, monkeypatch):
    write_model(tmp_path / "even", seed)
    measured, stop_at = jobs._measured, 2
    done = []

    def interrupted(job, estimated):
        if len(done) == stop_at:
            raise KeyboardInterrupt
        done.append(job.seed)
        return measured(job, estimated)

    def run():
        return reproduce("temperatures", outputs=tmp_path, seeds=range(4), out=tmp_path / "out")

    monkeypatch.setattr(jobs, "_measured", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run()
    stop_at = 100
    first = run()
    assert done == [0, 1, 2, 3]
    assert run().tables == first.tables
    [damaged] = (tmp_path / "out" / "cache").glob("*-seed1-*")
    damaged.write_text(damaged.read_text()[:-5])
    assert run().tables == first.tables
    assert done == [0, 1, 2, 3, 1]
    (tmp_path / "even" / "test.npz").unlink()
    write_model(tmp_path / "new", seed + 1)
    (tmp_path / "new" / "test.npz").rename(tmp_path / "even" / "test.npz")
    (tmp_path / "new" / "train.npz").unlink()
    run()
    assert done[5:] == [0, 1, 2, 3]  # other data, other results


# claims by hand


def evaluation_of(**tables):
    columns = {name: to_columns(name, tables.get(name, [])) for name in TABLES}
    return aty.Evaluation("compare", ("uncalibrated", "ts", "aar"), 10, 2, 1, {"n_groups": 2}, (), columns)


def group_rows(metric, **values):
    return [
        {"method": method, "group": group, "metric": metric, "count": 10, "value": value}
        for method, curve in values.items()
        for group, value in enumerate(curve)
    ]


def test_margins_by_hand():
    rows = group_rows("ece", uncalibrated=[0.1, 0.05, 0.3], ts=[0.1, 0.1, 0.2], aar=[0.05, 0.1, 0.05])
    rows += group_rows("accuracy", uncalibrated=[0.9, 0.8, 0.75])
    grid = [
        {"method": "uncalibrated", "group": group, "confidence_group": level, "metric": "overconfidence"}
        | {"count": count, "value": value}
        # level 0: 0.3 - 0.1 with weight min(10, 30); level 1: 0.0 - 0.1 with weight min(20, 5); level 2: no typical row
        for level, group, count, value in [
            (0, 0, 10, 0.1),
            (0, 1, 30, 0.3),
            (1, 0, 20, 0.1),
            (1, 1, 5, 0.0),
            (2, 1, 9, 1),
        ]
    ]
    found = margins("balanced", evaluation_of(atypicality_groups=rows, grid=grid))
    expected = {
        (1, HIGHER): 0.2,
        (1, ECE_STEPS): -0.05,
        (1, LOWER): 0.15,
        (1, ACCURACY_STEPS): 0.05,
        (2, SAME_CONFIDENCE): (10 * 0.2 - 5 * 0.1) / 15,
        (4, MEAN): 0.2 / 3,
        (4, LAST): 0.15,
        (4, MOST): 0.1,
    }
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("gaps", "verdict"),
    [((0.1, 0.2), "holds"), ((0.3, -0.1), "not for every seed"), ((0.1, -0.3), "does not hold"), ((0.1, 0.0), None)],
)
def test_a_claim_holds_when_every_seed_says_so(gaps, verdict):
    results = [
        evaluation_of(atypicality_groups=group_rows("ece", uncalibrated=[0.5, 0.5 + gap])
                      + group_rows("accuracy", uncalibrated=[1.0, 1.0]))
        for gap in gaps
    ]  # fmt: skip
    first = judge("balanced", [1], results, "here")[0]
    assert first.verdict == (verdict or "not for every seed")  # a tie is no rise
    assert first.margin == pytest.approx(np.mean(gaps))


def test_what_nobody_can_tell_is_not_said_to_hold():
    assert Verdict(5, "s", "w", float("nan"), float("nan"), 0, 10).verdict == "cannot be judged"


# tables


def small_table(metric="ece"):
    seeds = [{(metric, ("1",), "a_b"): value} for value in (0.1, 0.2, 0.3)]
    naming = {"experiment": "balanced", "atypicality": "GMM", "model": "net", "dataset": "50% | data", "title": "net"}
    [table] = make_tables(naming, ("quantile",), seeds, {(metric, ("1",), "a_b"): (0.15, 0.01)})
    return table


def test_cells_by_hand():
    cell = small_table().cells[("1",), "a_b"]
    assert (cell.ours, cell.error) == (pytest.approx(0.2), pytest.approx(0.1 / 3**0.5))
    assert cell.difference == pytest.approx(0.05)


def test_the_papers_rmse_is_shown_and_never_compared():
    table = small_table("rmsce")
    assert table.cells[("1",), "a_b"].difference is None
    assert "not comparable" in to_text(table)
    assert "diff." not in to_text(table)
    [row] = csv.DictReader(io.StringIO(to_csv([table])))
    assert (row["paper"], row["difference"], row["comparable"]) == ("0.15", "", "false")


def test_csv_is_tidy():
    [row] = csv.DictReader(io.StringIO(to_csv([small_table()])))
    assert row["dataset"] == "50% | data"
    assert [float(row[name]) for name in ("ours", "paper", "paper_stderr", "difference")] == [0.2, 0.15, 0.01, 0.05]


def test_markdown_and_latex_are_well_formed():
    table = small_table()
    lines = [line for line in to_markdown(table).splitlines() if line.startswith("|")]
    assert {line.count("|") for line in lines} == {5}
    assert lines[-1] == "| 1 | 0.200 ± 0.058 | 0.150 ± 0.010 | +0.050 |"
    latex = to_latex(table)
    assert r"\multicolumn{3}{c}{a\_b}" in latex
    assert r"1 & 0.200 $\pm$ 0.058 & 0.150 $\pm$ 0.010 & +0.050 \\" in latex
    assert latex.count(r"\begin{") == latex.count(r"\end{") == 2


def test_text_columns_line_up():
    long = Table("t", "", "", "", "m", "title", ("row",), ("a very long name of a method", "b"),
                 {(("1",), "a very long name of a method"): Cell(1.0, 0.1), (("1",), "b"): Cell(2.0, 0.1)})  # fmt: skip
    _, above, below, body = to_text(long).splitlines()
    assert above.rindex("b") == below.rindex("ours") == body.index("2.000")


# the command


def test_the_command_prints_and_writes(tmp_path, seed, capsys):
    write_model(tmp_path / "cifar10-wrn28-10", seed)
    arguments = ["--outputs", str(tmp_path), "--seeds", "2", "--out", str(tmp_path / "out")]
    assert main(["reproduce", "balanced", *arguments, "--dataset", "cifar10", "--methods", "vector"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "ECE: WideResNet28 / CIFAR10, KNN" in out
    assert "Claim 4." in out
    assert "vector" in out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        *("balanced.csv", "balanced.md", "balanced.tex", "cache")
    ]
    cached = next((tmp_path / "out" / "cache").iterdir())
    assert json.loads(cached.read_text())["kind"] == "compare"


def test_the_command_prints_json_and_standard_errors(tmp_path, seed, capsys):
    write_model(tmp_path / "cifar10-wrn28-10", seed)
    arguments = ["temperatures", "--outputs", str(tmp_path), "--seeds", "2", "--out", str(tmp_path / "out")]
    assert main(["reproduce", *arguments, "--errors"]) == 0
    assert " ± " in capsys.readouterr().out
    assert main(["reproduce", *arguments, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)["experiments"]["temperatures"]
    assert printed["paper"] == "Figure 10"
    assert {verdict["claim"] for verdict in printed["verdicts"]} == {3}
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out" / "temperatures.csv").read_text())))
    assert [cell["row"] for cell in printed["cells"]] == [row["row"] for row in rows]
    np.testing.assert_allclose([c["ours"] for c in printed["cells"]], [float(r["ours"]) for r in rows], rtol=1e-5)


def test_where_there_is_nothing_to_run_no_file_is_written_over(tmp_path, seed, capsys):
    write_model(tmp_path / "cifar10-wrn28-10", seed)
    arguments = ["--outputs", str(tmp_path), "--seeds", "1", "--out", str(tmp_path / "out")]
    assert main(["reproduce", "temperatures", *arguments]) == 0
    before = (tmp_path / "out" / "temperatures.csv").read_text()
    assert main(["reproduce", "temperatures", *arguments, "--dataset", "cifar100"]) == 0
    assert "Nothing to run" in capsys.readouterr().out
    assert (tmp_path / "out" / "temperatures.csv").read_text() == before


def test_the_papers_numbers_are_shown_without_outputs(tmp_path, capsys):
    arguments = ["--dataset", "cifar100-wrn", "--paper", "--out", str(tmp_path)]
    assert main(["reproduce", "balanced", *arguments]) == 0
    out = capsys.readouterr().out
    printed = paper_values("balanced", match_folder("cifar100-wrn28-10").setting, "GMM")
    table = out[out.index("ECE: WideResNet28 / CIFAR100, GMM") :].partition("\n\n")[0].splitlines()
    assert "In the paper: Figures 2 (b) and 3 (a)" in out
    assert table[2].split() == ["quantile", *["paper"] * (len(table[1].split()))]
    assert table[-1].split()[1:] == [f"{printed['ece', ('1',), m][0]:.3f}" for m in table[1].split()]
    assert "ours" not in out.partition("Missing")[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("balance",), "experiment must be"),
        (("balanced", "--outputs", "no-such-folder"), "outputs must be a folder; 'no-such-folder' is not one."),
        (("balanced", "--methods", "magic"), "methods must be"),
        (("balanced", "--seeds", "0"), "Invalid value for '--seeds'"),
    ],
)
def test_a_mistake_is_one_line(arguments, message, capsys, tmp_path):
    assert main(["reproduce", *arguments, "--out", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_a_folder_without_outputs_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"a folder per model, each with test\.npz"):
        reproduce("balanced", outputs=tmp_path)


def test_only_what_was_asked_for(tmp_path, seed):
    write_model(tmp_path / "cifar10-wrn28-10", seed)
    write_model(tmp_path / "even", seed)
    found = reproduce("temperatures", outputs=tmp_path, dataset="cifar100", out=tmp_path / "out")
    assert found.tables["temperatures"] == []
    assert [line.partition(":")[0] for line in found.missing["temperatures"]] == ["WideResNet28 / CIFAR100"]
    found = reproduce("temperatures", outputs=tmp_path, model="wideres", seeds=[0], out=tmp_path / "out")
    assert {table.dataset for table in found.tables["temperatures"]} == {"CIFAR10"}
    with pytest.raises(ValueError, match=r"match nothing; data sets: AG News, .*, even\."):
        reproduce("temperatures", outputs=tmp_path, dataset="svhn")


def test_no_seeds_is_an_error():
    with pytest.raises(ValueError, match="seeds must hold at least one"):
        reproduce("theory", seeds=[])
