"""
Classes that were rare in training
==================================

Real training sets are long-tailed: a few classes have thousands of rows, many have a
handful. Networks then prefer the common classes. A score for each class, learnt after
the fact from held-out rows, gives the rare ones their due.
"""

# %%
# A network that learnt from a long tail
# --------------------------------------
# The same clothes as before, but of the first class there were 6,000 training images
# and of the last one 60. New images come from all classes equally often. Atypicality of
# a class is minus the logarithm of its share in training.

import atypicality as aty

train, calibration, test = aty.datasets.load_fashion_mnist_lt()
rarity_of_class = aty.ClassAtypicality().fit(train.labels)
head = aty.ReliabilityHead().fit(train=train, calibration=calibration)
evaluation = aty.evaluate({"model": "uncalibrated", "head": head}, test, train=train)

# %%
# Class by class
# --------------
# Accuracy of the model alone, and of the recalibrated predictions behind it.

accuracy = {
    name: [
        row["value"]
        for row in evaluation.table("classes", method=name, metric="accuracy")
    ]
    for name in evaluation.methods
}
print("class         atypicality   model    head")
for j, name in enumerate(test.class_names):
    rarity = rarity_of_class.atypicality([j])[0]
    before, after = accuracy["model"][j], accuracy["head"][j]
    print(f"{name:12s} {rarity:12.2f} {before:7.1%} {after:7.1%}")

# %%
# In doubt, the network had said T-shirt, the most common class. The head takes some of
# those answers back: T-shirts and pullovers lose a few points, but shirts, of which the
# network found one in three, are now found three times in five; bags and ankle boots
# gain too, and overall accuracy rises. Nothing was trained again: the probabilities
# were learnt from 2,500 held-out rows of logits and embeddings.

overall = {
    row["method"]: row["value"]
    for row in evaluation.table("overall", metric="accuracy")
}
print(f"overall: {overall['model']:.1%} -> {overall['head']:.1%}")
worst = {name: min(values) for name, values in accuracy.items()}
print(f"worst class: {worst['model']:.1%} -> {worst['head']:.1%}")
assert overall["head"] > overall["model"] + 0.02
assert worst["head"] > worst["model"] + 0.15

# %%
# Confidence was wrong there too
# ------------------------------
# Two classes at a time, the most common first: how far the mean confidence lies above
# the accuracy.

aty.charts.quality_by_group(evaluation, "overconfidence", by="class")
