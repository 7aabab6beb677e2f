"""One prediction: pure functions of one block of rows, over the array API; nothing else computes one.

A fitted part gives its parameters as a small frozen dataclass (`part.formula()`), whose methods take a namespace `xp`
and arrays of it. NumPy runs them block by block, torch and CuPy on the device of the arrays, `torch.compile` and
`torch.export` trace them, and `shipping.onnx` writes them into a graph. So they follow a few rules: input is checked
before, one number per row is a column (n, 1), index ranges are parameters, and nothing depends on the number of rows or
on the values of an array. `+=` is used on arrays made here, never on an argument.
"""

from atypicality.formula.advice import (
    ADVICE,
    ASK,
    CHOOSE,
    EVEN,
    AdviceRule,
    advice,
    advice_numbers,
    advice_texts,
    choice_size,
    longest_choice,
    set_sizes,
)
from atypicality.formula.density import (
    ClassDensity,
    LinearDensity,
    NeighborDensity,
    RelativeDensity,
    TiedDensity,
    TwoDensities,
)
from atypicality.formula.head import HeadFormula, Outcome, Rarity, guarded, reads_of
from atypicality.formula.parameters import moved, named_arrays, speaks_for
from atypicality.formula.recalibration import (
    ByGroup,
    ClassMixing,
    Constant,
    ContentFree,
    Given,
    LogDensity,
    LogitModel,
    Mixture,
    Neighbours,
    Quadratic,
    Rank,
    Rows,
    SimilarLogits,
    SimilarProbabilities,
    Top,
)
from atypicality.formula.rows import Quadrant, Scale, softmax
from atypicality.formula.sets import GridSets, ScoreRule, accepted, scores_along

__all__ = [
    "ADVICE", "ASK", "CHOOSE", "EVEN", "AdviceRule", "ByGroup", "ClassDensity", "ClassMixing", "Constant",
    "ContentFree", "Given", "GridSets", "HeadFormula", "LinearDensity", "LogDensity", "LogitModel", "Mixture",
    "NeighborDensity", "Neighbours", "Outcome", "Quadrant", "Quadratic", "Rank", "Rarity", "RelativeDensity",
    "Rows", "Scale", "ScoreRule", "SimilarLogits", "SimilarProbabilities", "TiedDensity", "Top", "TwoDensities",
    "accepted", "advice", "advice_numbers", "advice_texts", "choice_size", "guarded", "longest_choice", "moved",
    "named_arrays", "reads_of", "scores_along", "set_sizes", "softmax", "speaks_for",
]  # fmt: skip
