"""
Data larger than memory, and data in many places
================================================

A Gaussian atypicality is counts, sums and products: it can be learnt from memory-mapped
files, block by block, or in several places at once and put together afterwards, with
the same result to rounding.
"""

# %%
# Embeddings in files
# -------------------
# Three files stand for what three machines wrote. Opened with ``mmap_mode="r"``, none
# of them is read before its rows are needed.

import tempfile
from pathlib import Path

import numpy as np

import atypicality as aty

train, calibration, test = aty.datasets.load_fashion_mnist_lt()
workspace = tempfile.TemporaryDirectory()
parts = []
for number, rows in enumerate(np.array_split(np.arange(len(train)), 3)):
    names = [
        Path(workspace.name) / f"{kind}-{number}.npy"
        for kind in ("embeddings", "labels")
    ]
    np.save(names[0], train.embeddings[rows])
    np.save(names[1], train.labels[rows])
    parts.append([np.load(name, mmap_mode="r") for name in names])
print([f"{type(x).__name__} {x.shape}" for x, _ in parts])

# %%
# One after the other
# -------------------
# ``partial_fit`` adds the rows of a file to what was learnt before.

growing = aty.GaussianAtypicality()
for embeddings, labels in parts:
    growing.partial_fit(embeddings, labels)

# %%
# Each on its own, then together
# ------------------------------
# Fitted estimators merge. What travels between machines is a few small matrices,
# whatever the number of rows.

first, second, third = (
    aty.GaussianAtypicality().fit(embeddings, labels) for embeddings, labels in parts
)
merged = first.merge(second).merge(third)

whole = aty.GaussianAtypicality().fit(train.embeddings, train.labels)
expected = whole.atypicality(test.embeddings)
for name, density in {"partial_fit": growing, "merge": merged}.items():
    found = density.atypicality(test.embeddings)
    difference = np.abs(found - expected).max()
    print(f"{name:11s} largest difference to one fit: {difference:.1e}")
    assert difference < 1e-6

# %%
# A third of the rows alone would have said something else, so that the agreement means
# something.

difference = np.abs(first.atypicality(test.embeddings) - expected).max()
print(f"one third   largest difference to one fit: {difference:.1e}")
assert difference > 1
workspace.cleanup()

# %%
# On with the head
# ----------------
# A fitted density takes the place of training rows. With new calibration rows,
# ``refit`` keeps it and learns the rest again.

head = aty.ReliabilityHead().fit(train=merged, calibration=calibration)
print(head.summary())
evaluation = aty.evaluate({"head": head}, test)

# %%

aty.charts.atypicality_distribution(evaluation)
