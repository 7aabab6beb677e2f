"""What the tests of evaluations share: a world with its outputs, sets, and a head as the contract has it."""

from types import SimpleNamespace

import numpy as np
import scipy.special

import atypicality as aty
from atypicality.datasets import make_world
from atypicality.groups import QuantileGroups


def world_of(seed):
    return make_world(1200, 4, temperature=2.0, class_imbalance=8, atypical_noise=0.5, random_state=seed)


def train_of(seed):
    """Rows about the same class means: a world of another seed has means of its own."""
    world, rng = world_of(seed), np.random.default_rng(seed + 1000)
    labels = rng.choice(4, 800, p=world.class_shares)
    rows = world.class_means[labels] + rng.standard_normal((800, world.class_means.shape[1]))
    return aty.ModelOutputs(embeddings=rows, labels=labels, class_names=list(world.class_names))


def outputs_of(world):
    return aty.ModelOutputs(
        world.logits,
        embeddings=world.embeddings,
        labels=world.labels,
        attributes={"side": np.where(np.arange(len(world)) % 3 == 0, "left", "right")},
        class_names=list(world.class_names),
    )


def sets_of(probs, threshold=0.1):
    return (probs >= threshold) | (probs == probs.max(axis=1, keepdims=True))


def column(evaluation, table, name="value", **where):
    return np.array([row[name] for row in evaluation.table(table, **where)], dtype=float)


class FakeHead:
    """A head as the contract has it: outputs in, an object with proba, atypicality and prediction_set out."""

    def __init__(self, temperature=2.0):
        self.temperature = temperature

    def get_params(self, deep=True):
        return {"temperature": self.temperature}

    def fit(self, *, train, calibration):
        self.density_ = train
        self.fingerprint_ = {"calibration": calibration.fingerprint()}
        rarity = train.atypicality(calibration.embeddings)
        self.atypicality_groups_ = QuantileGroups(5).fit(rarity)
        self.quadrants_ = aty.Quadrants().fit(self._probs(calibration).max(axis=1), rarity)
        self.prediction_sets = SimpleNamespace(alpha=0.2)
        return self

    def _probs(self, outputs):
        return scipy.special.softmax(outputs.logits / self.temperature, axis=1)

    def predict(self, outputs):
        probs = self._probs(outputs)
        rarity = self.density_.atypicality(outputs.embeddings)
        return SimpleNamespace(proba=probs, atypicality=rarity, prediction_set=sets_of(probs))
