"""What the tests of charts and reports share: evaluations with everything in them, hostile names among it."""

import functools

import numpy as np

import atypicality as aty
from atypicality.datasets import make_world

HOSTILE = "</script><img src=x onerror=alert(1)>"
NAMES = ["cat", HOSTILE, "=cmd|' /C calc'!A0", "\u202eright to left & \u2028 <!-- <script>"]
QUADRANTS = ("reliable", "extrapolation", "ambiguous", "untrustworthy")


def make_outputs(n_samples=1500, seed=0):
    world = make_world(n_samples, 4, temperature=2.0, class_imbalance=8, atypical_noise=0.5, random_state=seed)
    return aty.ModelOutputs(
        world.logits,
        embeddings=world.embeddings,
        labels=world.labels,
        attributes={"side<b>": np.where(np.arange(n_samples) % 3 == 0, "left", HOSTILE)},
        class_names=NAMES,
        ids=[f"{HOSTILE} {row}" for row in range(n_samples)],
    )


@functools.cache
def evaluation_and_head():
    from atypicality.head import ReliabilityHead

    train, calibration, test = make_outputs(2000, 1), make_outputs(1500, 2), make_outputs()
    head = ReliabilityHead().fit(train=train, calibration=calibration)
    scaled = aty.TemperatureScaling().fit(*calibration.need("logits", "labels"))
    methods = {"uncalibrated": "uncalibrated", "one <i>temperature</i>": scaled, "head": head}
    return aty.evaluate(methods, test), head


@functools.cache
def comparison():
    return aty.compare(["uncalibrated", "ts", "aar"], make_outputs(800), train=make_outputs(800, 1), n_splits=2)
