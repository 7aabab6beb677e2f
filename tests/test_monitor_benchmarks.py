"""What estimates of accuracy and delays of alarms are compared with, against independent computations."""

import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter
from scipy.optimize import linear_sum_assignment

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import monitor_delays
from benchmarks.accuracy_estimates import Cbpe, transported
from benchmarks.accuracy_models import corruptions


def test_the_transport_cost_is_that_of_the_best_assignment(rng):
    probs = rng.dirichlet(np.full(4, 0.4), 80)
    counts = np.array([8, 16, 24, 32])
    columns = np.repeat(np.arange(4), counts)
    rows, places = linear_sum_assignment(-probs[:, columns])
    exact = probs[rows, columns[places]].mean()
    found = transported(probs, counts / 80)
    assert exact - 1e-9 <= found <= exact + 0.002 * np.log(4)  # a dual value, off by the last smoothing at most


def test_cbpe_of_classes_that_are_told_apart_is_the_mean_confidence(rng):
    labels = rng.integers(0, 3, 300)
    probs = 0.04 + 0.88 * np.eye(3)[labels]  # an AUROC of 1: no class is calibrated again
    assert Cbpe(probs, labels)(probs) == pytest.approx(0.92)


def test_cbpe_calibrates_classes_that_need_it(rng):
    labels = rng.integers(0, 2, 4000)
    said = np.where(rng.random(4000) < 0.7, labels, 1 - labels)
    noise = rng.uniform(0, 0.01, 4000)  # far too certain: 0.98 or 0.99 where 7 of 10 are right
    probs = np.where(np.eye(2)[said] == 1, 0.985 + noise[:, None], 0.015 - noise[:, None])
    assert Cbpe(probs, labels)(probs) == pytest.approx(0.7, abs=4 * np.sqrt(0.21 / 4000))


@pytest.mark.parametrize("name", list(corruptions()))
def test_a_corruption_is_stronger_the_stronger(name, rng):
    smooth = gaussian_filter(rng.standard_normal((20, 24, 24)), (0, 3, 3))  # as objects are, and noise is not
    images = 0.5 + 0.3 * smooth / np.abs(smooth).max()
    moved = [np.abs(corruptions()[name](images, strength, rng) - images).mean() for strength in (1, 2, 3)]
    assert 0 < moved[0] < moved[1] < moved[2]


def test_alarms_of_lives_are_found_where_they_are(rng, monkeypatch):
    for name, value in {"LOOKS": 300, "WINDOW": 100, "CHANGE": 100, "KS_ROWS": (500,), "REFERENCES": (2000,)}.items():
        monkeypatch.setattr(monitor_delays, name, value)
    reference, values = next(iter(monitor_delays.lives(1, 2000, 2.0, 0)))
    found = monitor_delays.monitor_alarm(monitor_delays.tests_of(reference), values)
    assert 100 <= found < 110
    gaps = monitor_delays.ks_path(reference, values, 500)
    assert gaps[:49].max() == 0
    newest = values[200:250].ravel()
    known = np.searchsorted(np.sort(reference), np.sort(newest), side="right") / 2000
    exact = np.abs(known - np.arange(1, 501) / 500).max()
    assert gaps[249] == pytest.approx(exact, abs=2 / monitor_delays.CELLS)
