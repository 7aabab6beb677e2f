"""What the tests of charts and reports share: evaluations with everything in them, hostile names among it."""

import functools

import numpy as np

import atypicality as aty
from atypicality.datasets import make_world

HOSTILE = "</script><img src=x onerror=alert(1)>"
NAMES = ["cat", HOSTILE, "=cmd|' /C calc'!A0", "\u202eright to left & \u2028 <!-- <script>"]
QUADRANTS = ("reliable", "extrapolation", "ambiguous", "untrustworthy")


@functools.cache
def world_outputs():
    """One world of 5,000 rows, to be cut into parts: another seed would be another world."""
    world = make_world(5000, 4, temperature=2.0, class_imbalance=8, atypical_noise=0.5)
    rows = np.arange(5000)
    return aty.ModelOutputs(
        world.logits,
        embeddings=world.embeddings,
        labels=world.labels,
        attributes={"side<b>": np.where(rows % 3 == 0, "left", HOSTILE), "length": np.sin(rows)},
        class_names=NAMES,
        ids=[f"{HOSTILE} {row}" for row in rows],
    )


TRAIN, CALIBRATION, TEST = slice(0, 2000), slice(2000, 3500), slice(3500, 5000)


@functools.cache
def evaluation_and_head():
    from atypicality.head import ReliabilityHead

    train, calibration, test = (world_outputs()[part] for part in (TRAIN, CALIBRATION, TEST))
    head = ReliabilityHead().fit(train=train, calibration=calibration)
    scaled = aty.TemperatureScaling().fit(*calibration.need("logits", "labels"))
    methods = {"uncalibrated": "uncalibrated", "one <i>temperature</i>": scaled, "head": head}
    return aty.evaluate(methods, test), head


@functools.cache
def comparison():
    return aty.compare(["uncalibrated", "ts", "aar"], world_outputs()[TEST], train=world_outputs()[TRAIN], n_splits=2)
