"""
Probabilities that fit rare inputs too
======================================

One temperature makes a network's confidence right on average. Underneath the average,
typical inputs become too humble and rare ones stay overconfident. A temperature that
follows atypicality corrects both.
"""

# %%
# Two recalibrators, fitted on the same rows
# ------------------------------------------
# Temperature scaling divides all logits by one number. Atypicality-aware recalibration
# lets the divisor follow how rare the input is, and adds a score for each class;
# ``paper()`` is the method exactly as published.

import numpy as np
from scipy.special import softmax

import atypicality as aty

train, calibration, test = aty.datasets.load_fashion_mnist()
density = aty.GaussianAtypicality().fit(train.embeddings, train.labels)
rarity, new_rarity = (
    density.atypicality(part.embeddings) for part in (calibration, test)
)

single = aty.TemperatureScaling().fit(calibration.logits, calibration.labels)
aware = aty.AtypicalityAwareRecalibration.paper().fit(
    calibration.logits, calibration.labels, atypicality=rarity
)
probabilities = {
    "model": softmax(test.logits.astype(float), axis=1),
    "temperature scaling": single.predict_proba(test.logits),
    "atypicality-aware": aware.predict_proba(test.logits, atypicality=new_rarity),
}

# %%
# Confidence minus accuracy, by how rare the input is
# ---------------------------------------------------
# Five equally large groups, the most typical first. Above zero is overconfident, below
# zero too humble.

evaluation = aty.evaluate(probabilities, test, train=density)
gap = {
    name: np.array(
        [
            r["value"]
            for r in evaluation.table(
                "atypicality_groups", method=name, metric="overconfidence"
            )
        ]
    )
    for name in probabilities
}
for name, values in gap.items():
    print(f"{name:19s}", *(f"{100 * value:+6.1f} %" for value in values))

# %%
# The model alone is ever more overconfident as inputs get rarer. One temperature takes
# the same share away from everyone: the first three groups end up too humble, the last
# two stay overconfident. When the temperature follows atypicality, the size of the gap,
# averaged over the groups, falls by more than half.

size = {name: np.abs(values).mean() for name, values in gap.items()}
print({name: f"{100 * value:.1f} %" for name, value in size.items()})
assert (np.diff(gap["model"]) > 0).all()
assert (gap["temperature scaling"][:3] < 0).all()
assert (gap["temperature scaling"][3:] > 0).all()
assert size["atypicality-aware"] < 0.5 * size["temperature scaling"]

# %%
# The same as a figure, with 95 % intervals.

aty.charts.quality_by_group(evaluation, "overconfidence")

# %%
# What was learnt
# ---------------
# The logits are multiplied by a curve in atypicality instead of by one number: typical
# inputs keep more of their confidence than one temperature would leave them, rare ones
# less. The middle 90 % of the inputs are shaded.

typical, rare = aware.multiplier(np.quantile(rarity, [0.05, 0.95]))
print(f"one temperature multiplies all logits by {1 / single.temperature_:.2f}")
print(f"aware: by {typical:.2f} for a typical input, by {rare:.2f} for a rare one")
assert typical > 1 / single.temperature_ > rare

# %%

aty.charts.multiplier(aware, new_rarity)
