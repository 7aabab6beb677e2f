"""
The two theorems, simulated
===========================

The paper proves two things about logistic regression with Gaussian inputs: it is more
overconfident where inputs are more atypical, and a temperature that follows atypicality
corrects more than one temperature can. Both can be watched.
"""

# %%
# Overconfidence grows with atypicality
# -------------------------------------
# Maximum-likelihood fits in 50 dimensions, to 2,000, 1,000 and 500 rows. The five
# columns are equally likely groups of atypicality, which is half the squared length of
# the input here; the number is confidence minus accuracy.

import atypicality as aty

first = aty.theory.theorem_1(n_draws=25)
for row in first.rows:
    print(f"{row.n_train:5d} rows:", *(f"{100 * v:6.2f} %" for v in row.overconfidence))

# %%
# Never negative, rising from left to right, and steeper the fewer rows there are. This
# is theorem 3.1.

assert all(row.rises and row.overconfidence[0] > 0 for row in first.rows)
assert first.rows[0].rise < first.rows[1].rise < first.rows[2].rise
aty.charts.theorem_1_curves(first)

# %%
# Where it ends
# -------------
# The theorem is about true coefficients of small norm. With a norm of 2 the classifier
# stays overconfident, but the order turns around: rare inputs then lie far from the
# boundary, where the truth is clear too.

strong = aty.theory.theorem_1(500, norm=2.0, n_draws=25).rows[0]
print("norm 2:", *(f"{100 * value:6.2f} %" for value in strong.overconfidence))
assert not strong.rises
assert min(strong.overconfidence) > 0

# %%
# A temperature that follows atypicality
# --------------------------------------
# Theorem G.2 compares what is left of the calibration error at nine levels of
# atypicality: with no temperature, with one, and with one for each level.

second = aty.theory.theorem_2(n_draws=25)
print("level   none      one       aware")
for row in second.rows:
    errors = (row.error_uncalibrated, row.error_single_squared, row.error_aware_squared)
    print(f"{row.level:5.1f}", *(f"{error:9.2e}" for error in errors))
assert second.holds_squared

# %%
# One temperature removes nearly everything in this simple world, because all of it is
# overconfidence; following atypicality removes more of the rest, and most at both ends.
# It is never worse, at any level, when temperatures are fitted by squared loss. The
# paper states the same for cross-entropy. There it can fail, at levels where one
# temperature happens to pass close to the best one, and the library says at which.

other = aty.theory.theorem_2(norm=2.0, n_draws=25)
print("norm 2, cross-entropy: fails at levels", list(other.fails_cross_entropy))
assert other.holds_squared
assert len(other.fails_cross_entropy) > 0

# %%

aty.charts.theorem_2_curves(second)
