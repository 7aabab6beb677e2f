"""Save or load a head with the set method of docs/extending.md, in a process of its own; print what it answers."""

import sys

import bundle_cases as cases

from atypicality import conformal, load

if __name__ == "__main__":
    folder, step = sys.argv[1:]
    if step == "save":
        head = cases.fitted(prediction_sets=conformal.GroupConformal(n_groups=3))
        head.save(folder)
    else:
        head = load(folder)
    assert type(head.prediction_sets_) is conformal.GroupConformal
    print(cases.digest(head, cases.asked(head)))
