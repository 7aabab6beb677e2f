"""
Groups that nobody told the model about
=======================================

A model may serve some people, devices or conditions worse than others, and often nobody
has recorded which is which. Groups that a model has seen less of tend to be more
atypical, so that caring for atypicality narrows gaps between groups that the method
never hears of.
"""

# %%
# A property that stays hidden
# ----------------------------
# The bundled outputs carry the mean brightness of every image. It is used for measuring
# only: neither the network nor the methods below ever see it.

import atypicality as aty

train, calibration, test = aty.datasets.load_fashion_mnist_lt()
print("attributes:", list(test.attributes))

density = aty.GaussianAtypicality().fit(train.embeddings, train.labels)
heads = {
    "temperature scaling": aty.ReliabilityHead(
        density, recalibration=aty.TemperatureScaling()
    ),
    "atypicality-aware": aty.ReliabilityHead(density),
}
methods = {
    name: head.fit(train=density, calibration=calibration)
    for name, head in heads.items()
}
evaluation = aty.evaluate({"model": "uncalibrated"} | methods, test)

# %%
# The gap between dark and bright images
# --------------------------------------
# Attributes that are numbers are cut into quantile groups; here 0 is the darkest fourth
# of the images and 3 the brightest.

found = {}
for metric in ("accuracy", "ece"):
    for name in evaluation.methods:
        rows = evaluation.table(
            "subgroups", attribute="brightness", method=name, metric=metric
        )
        found[metric, name] = [row["value"] for row in rows]
        print(
            f"{metric:9s} {name:19s}",
            *(f"{value:7.1%}" for value in found[metric, name]),
        )

# %%
# Bright images are harder for this network: it is least accurate on them and most wrong
# about itself. One temperature leaves the predictions as they are. The aware head
# raises accuracy in every group, most for the brightest, and its calibration error is
# the lowest in every group.

spread = {key: max(values) - min(values) for key, values in found.items()}
for (metric, name), value in spread.items():
    print(f"gap in {metric:9s} {name:19s} {value:6.1%}")
assert spread["accuracy", "atypicality-aware"] < spread["accuracy", "model"]
assert (
    spread["ece", "atypicality-aware"]
    < spread["ece", "temperature scaling"]
    < spread["ece", "model"]
)
assert all(
    new > old
    for new, old in zip(
        found["accuracy", "atypicality-aware"], found["accuracy", "model"], strict=True
    )
)

# %%

aty.charts.subgroup_bars(evaluation, "ece")
