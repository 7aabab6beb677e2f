"""
Any scikit-learn classifier, made aware
=======================================

A pipeline goes in, a classifier comes out: with recalibrated probabilities, prediction
sets, and a word on how rare each row is. It clones, scores and searches like any other
estimator.
"""

# %%
# A pipeline, wrapped
# -------------------
# :class:`~atypicality.AtypicalityAwareClassifier` trains the pipeline on a part of the
# rows and calibrates on the rest. Labels may be texts. What counts as rare is measured
# on what ``embedder`` makes of a row; pixels of digits have few degrees of freedom, so
# twenty principal components are enough.

import textwrap
import warnings

import altair as alt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import atypicality as aty

X, y = load_digits(return_X_y=True)
names = np.array([f"digit {j}" for j in range(10)])
parts = train_test_split(X, names[y], test_size=0.3, random_state=0)
X_train, X_test, y_train, y_test = parts

pipeline = make_pipeline(StandardScaler(), RandomForestClassifier(random_state=0))
model = aty.AtypicalityAwareClassifier(pipeline, embedder=PCA(20)).fit(X_train, y_train)
print(model.predict(X_test[:3]), "for", y_test[:3])

# %%
# Better probabilities
# --------------------
# A random forest is too humble: it averages trees that disagree. Recalibration
# learns from rows that trained nothing.

before = log_loss(y_test, model.estimator_.predict_proba(X_test), labels=model.classes_)
after = log_loss(y_test, model.predict_proba(X_test), labels=model.classes_)
print(f"log loss of the forest {before:.3f}, recalibrated {after:.3f}")
assert after < before

# %%
# Sets, and the rows they are for
# -------------------------------
# ``predict_set`` holds the true digit for at least 90 % of the rows. This task is
# easy, so that sets of one digit already do better.

sets = model.predict_set(X_test)
columns = np.searchsorted(model.classes_, y_test)
coverage, size = aty.metrics.coverage(sets, columns), aty.metrics.set_size(sets)
print(f"coverage {coverage:.3f}, mean set size {size:.2f}")
assert coverage > 0.9

# %%
# When the data drift
# -------------------
# A scanner grows old and puts noise on every pixel. Nobody has labels for the new rows,
# but the model notices that they are unlike the ones it was calibrated on.

noisy = np.clip(X_test + np.random.default_rng(0).normal(0, 6, X_test.shape), 0, 16)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    answer = model.reliability(noisy)
print(textwrap.fill(str(caught[0].message), 88))

# %%
# It is right to worry: accuracy falls, most of all for the rarest rows.

right = model.classes_[answer.label] == y_test
rarest = right[answer.atypicality_quantile > 0.99]
clean = model.score(X_test, y_test)
print(f"accuracy: {clean:.3f} on clean rows, {right.mean():.3f} on noisy ones,")
print(f"{rarest.mean():.3f} on the {rarest.size} rarest of them")
assert rarest.mean() < right.mean() < clean

# %%

rows = [{"rows": "clean", "rarity": float(a)} for a in model.atypicality(X_test)]
rows += [{"rows": "noisy", "rarity": float(a)} for a in answer.atypicality]
bars = alt.Chart(alt.Data(values=rows), width=420).mark_bar(opacity=0.6)
bars.encode(
    alt.X("rarity:Q", bin=alt.Bin(maxbins=40), title="Atypicality (right = rarer)"),
    alt.Y("count()", stack=None, title="Number of rows"),
    alt.Color("rows:N", title=None, scale=alt.Scale(range=["#0072B2", "#D55E00"])),
)
