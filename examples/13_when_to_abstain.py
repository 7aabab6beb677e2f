"""
Answer, or leave it to a person
===============================

"At most 2 % of the automatic answers may be wrong." The head turns such a sentence into
a rule: which predictions to keep, chosen on held-out rows by tests in a fixed sequence,
so that the limit holds in 95 of 100 cases although the rows chose the threshold.
"""

# %%
# A rule for every risk
# ---------------------
# ``max_risk`` marks the predictions to keep. The stricter the demand, the fewer are
# kept, and their error can be checked on labelled rows. A row more atypical than every
# held-out row is never kept: no error rate was measured there.

from scipy.special import softmax

import atypicality as aty

train, calibration, test = aty.datasets.load_fashion_mnist_lt()
head = aty.ReliabilityHead().fit(train=train, calibration=calibration)

print("allowed   kept   wrong among them")
for risk in (0.10, 0.05, 0.02, 0.01):
    answer = head.predict(test, max_risk=risk)
    kept = answer.accepted
    wrong = (answer.label != test.labels)[kept].mean()
    print(f"{risk:7.0%} {kept.mean():6.1%} {wrong:18.2%}")
    assert wrong <= risk

# %%
# Why not a threshold on the model's own confidence?
# --------------------------------------------------
# Because it does not mean what it says. Whoever keeps the answers of which the network
# is 98 % confident expects fewer than 2 % of them to be wrong.

confidence = softmax(test.logits.astype(float), axis=1).max(axis=1)
naive = confidence >= 0.98
wrong = (test.logits.argmax(axis=1) != test.labels)[naive].mean()
print(
    f"confidence of 98 % or more: keeps {naive.mean():.1%}, {wrong:.2%} of them wrong"
)
assert wrong > 0.04

# %%
# Who goes to the person?
# -----------------------
# At 2 %, every low-confidence prediction; and among the confident ones, those for
# atypical inputs rather than those for typical ones.

answer = head.predict(test, max_risk=0.02)
for kind in ("reliable", "extrapolation", "ambiguous", "untrustworthy"):
    members = answer.quadrant == kind
    automatic = answer.accepted[members].mean()
    print(f"{kind:14s} {members.sum():5d} predictions, {automatic:6.1%} automatic")

# %%
# The whole trade
# ---------------
# Error among the answers against the share that is answered, for the model's own
# confidence, one temperature, and the head. One temperature hardly changes the order of
# the predictions, and the order decides here. The printed numbers are the mean error
# over all shares: that of the head is about a third.

single = aty.TemperatureScaling().fit(calibration.logits, calibration.labels)
evaluation = aty.evaluate(
    {"model": "uncalibrated", "temperature scaling": single, "head": head}, test
)
area = {
    row["method"]: row["value"]
    for row in evaluation.table("overall", metric="risk_coverage_area")
}
print({name: round(value, 4) for name, value in area.items()})
assert area["head"] < area["model"] / 2

# %%

aty.charts.risk_coverage(evaluation)
