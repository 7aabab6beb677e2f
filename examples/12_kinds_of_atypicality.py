"""
Gaussian, neighbours, classes: three ways to be rare
====================================================

An input can be far from all classes (Gaussian densities), far from every single
training row (neighbours), or belong to a class of which there were few. All three tell
where the model errs, each in its own way.
"""

# %%
# How rare is an input?
# ---------------------
# Gaussians summarise the training rows and cost almost nothing; neighbours keep every
# row and search them exactly. Both are larger for what is rarer, on scales of their
# own, so that only the order is compared.

import altair as alt
import numpy as np
from scipy.stats import spearmanr

import atypicality as aty

train, calibration, test = aty.datasets.load_fashion_mnist_lt()
predicted = test.logits.argmax(axis=1)
correct = predicted == test.labels

gaussian = (
    aty.GaussianAtypicality()
    .fit(train.embeddings, train.labels)
    .atypicality(test.embeddings)
)
neighbours = (
    aty.NeighborAtypicality(n_neighbors=5)
    .fit(train.embeddings)
    .atypicality(test.embeddings)
)
agreement = spearmanr(gaussian, neighbours).statistic
print(f"rank correlation of the two: {agreement:.2f}")
assert agreement > 0.8

# %%
# How rare is a class?
# --------------------
# By the true class, which is known for test rows, and by the class that the model
# predicts.

shares = aty.ClassAtypicality().fit(train.labels)
class_groups = aty.ClassGroups(5).fit(shares.atypicality(np.arange(10)))

groups = {
    "Gaussian": aty.QuantileGroups(5).fit(gaussian).assign(gaussian),
    "neighbours": aty.QuantileGroups(5).fit(neighbours).assign(neighbours),
    "true class": class_groups.assign(test.labels),
    "predicted class": class_groups.assign(predicted),
}
confidence = np.full(correct.shape, correct.mean())
tables = {
    name: aty.metrics.by_group(
        aty.metrics.accuracy, confidence=confidence, correct=correct, groups=group
    )
    for name, group in groups.items()
}
for name, table in tables.items():
    print(f"{name:16s}", *(f"{value:6.3f}" for value in table.value))

# %%
# Accuracy from the most typical group to the rarest. Both input atypicalities order the
# test rows by how often the model errs; neighbours, which follow the shape of the data
# more closely, do so more sharply here. Rare *true* classes are missed more often than
# common ones, the fourth group most of all: it holds shirts, which look like T-shirts.
# Rare *predicted* classes are the opposite: a network that names a class it has hardly
# seen has good reason to. The errors are in its answers for common classes.

assert (np.diff(tables["Gaussian"].value) < 0).all()
assert (np.diff(tables["neighbours"].value) < 0).all()
assert tables["neighbours"].value[-1] < tables["Gaussian"].value[-1]
assert tables["true class"].value[:2].min() > tables["true class"].value[2:].max()
assert tables["predicted class"].value[0] < tables["predicted class"].value[-1]

# %%

rows = [
    {"group": i + 1, "by": name, "accuracy": v}
    for name, t in tables.items()
    for i, v in enumerate(t.value)
]
lines = alt.Chart(alt.Data(values=rows), width=420).mark_line(point=True)
lines.encode(
    alt.X("group:O", title="Group (1 = most typical)", axis=alt.Axis(labelAngle=0)),
    alt.Y("accuracy:Q", title="Accuracy", scale=alt.Scale(zero=False)),
    alt.Color(
        "by:N",
        title="Atypicality",
        sort=None,
        scale=alt.Scale(range=["#0072B2", "#D55E00", "#009E73", "#CC79A7"]),
    ),
)
