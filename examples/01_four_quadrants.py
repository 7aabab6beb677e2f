"""
The four kinds of prediction
============================

A classifier says how confident it is. It does not say whether it has seen anything like
this input before. Asking both questions splits predictions into four kinds, and only
one of them deserves trust without a second look.
"""

# %%
# What a model said
# -----------------
# The package brings the outputs of a small network on Fashion-MNIST: embeddings of rows
# that it was trained on, and logits, embeddings and labels of rows that it never saw.
# For your own model, fill a :class:`~atypicality.ModelOutputs` with the same arrays.

import atypicality as aty

train, calibration, test = aty.datasets.load_fashion_mnist()
print(test)

# %%
# A head on top
# -------------
# :class:`~atypicality.ReliabilityHead` learns how rare an input is from the training
# embeddings, and everything else from the calibration rows, which it cuts into disjoint
# parts.

head = aty.ReliabilityHead().fit(train=train, calibration=calibration)
answer = head.predict(test)
print(answer)

# %%
# How often is each kind right?
# -----------------------------
# Confident is a confidence of at least 1 - alpha, here 0.9; atypical are inputs rarer
# than four in five held-out rows. Any metric becomes a table by group, with counts and
# intervals.

correct = answer.label == test.labels
order = ["reliable", "extrapolation", "ambiguous", "untrustworthy"]
table = aty.metrics.by_group(
    aty.metrics.accuracy,
    confidence=answer.confidence,
    correct=correct,
    groups=answer.quadrant,
    names=order,
)
print(table)

# %%
# *Reliable* predictions are almost always right. *Untrustworthy* ones, of rare inputs
# and low confidence, are right two times in three. *Extrapolation* is the kind that
# confidence alone would miss: the model is confident, but it has seen little like this,
# and it errs more than twice as often as where it is confident of something typical.

reliable, extrapolation, ambiguous, untrustworthy = table.value
assert reliable > extrapolation > ambiguous > untrustworthy
assert reliable > 0.95
assert 1 - extrapolation > 2 * (1 - reliable)

# %%
# The picture
# -----------
# Every point is a test image, placed by how rare it is and how confident the
# recalibrated prediction is.

evaluation = aty.evaluate({"head": head}, test)
aty.charts.quadrant_scatter(evaluation)
