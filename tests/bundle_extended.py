"""Save a head with the set method of docs/extending.md and load it; print what each of the two answers."""

import sys

import bundle_cases as cases

from atypicality import conformal, load

if __name__ == "__main__":
    fitted = cases.fitted(prediction_sets=conformal.GroupConformal(n_groups=3))
    fitted.save(sys.argv[1])
    for head in (fitted, load(sys.argv[1])):
        assert type(head.prediction_sets_) is conformal.GroupConformal
        print(cases.digest(head, cases.asked(head)))
