"""
Two models, one report
======================

Which of two models should be used, and for whom does each of them fail? An evaluation
holds every table, prints the paper's layout, and becomes one HTML page to send around.
"""

# %%
# The same test images, two networks
# ----------------------------------
# One network was trained on all classes alike, the other on a long tail. Both get a
# head of their own, and both are asked about the same 5,000 images.

import json
import tempfile
from pathlib import Path

import atypicality as aty

balanced, long_tailed = (
    aty.datasets.load_fashion_mnist(),
    aty.datasets.load_fashion_mnist_lt(),
)
test = balanced.test
assert (test.labels == long_tailed.test.labels).all()

heads = {
    "balanced": aty.ReliabilityHead().fit(
        train=balanced.train, calibration=balanced.calibration
    ),
    "long-tailed": aty.ReliabilityHead().fit(
        train=long_tailed.train, calibration=long_tailed.calibration
    ),
}

# %%
# Everything is measured at once
# ------------------------------
# A head can be evaluated as it is. The second network has other logits and embeddings,
# so that its answers (probabilities and sets) are handed over; groups of atypicality
# are those of the first head, the same for both.

other = heads["long-tailed"].predict(long_tailed.test)
evaluation = aty.evaluate(
    {"balanced": heads["balanced"], "long-tailed": (other.proba, other.prediction_set)},
    test,
)
print(evaluation)

# %%
# Any number in it can be asked for. Both heads cover 90 % on average, as requested;
# the network that saw a long tail needs larger sets for it.

overall = {
    metric: {
        row["method"]: row["value"]
        for row in evaluation.table("overall", metric=metric)
    }
    for metric in ("accuracy", "ece", "coverage", "set_size")
}
for metric, values in overall.items():
    print(f"{metric:9s}", {name: round(value, 4) for name, value in values.items()})
assert overall["accuracy"]["balanced"] > overall["accuracy"]["long-tailed"]
assert min(overall["coverage"].values()) > 0.9
assert overall["set_size"]["long-tailed"] > overall["set_size"]["balanced"]

# %%
# The report
# ----------
# One file, no network needed to open it. The same numbers as JSON have stable keys, for
# a dashboard or a test.

with tempfile.TemporaryDirectory() as folder:
    page = Path(folder) / "report.html"
    evaluation.report(page)
    print(f"report.html: {page.stat().st_size / 1e6:.1f} MB")
document = json.loads(evaluation.to_json())
print(f"to_json: {len(document['tables'])} tables, of", *document["methods"])

# %%
# Where do they differ? Accuracy by group of atypicality, with intervals.

aty.charts.quality_by_group(evaluation, "accuracy")
