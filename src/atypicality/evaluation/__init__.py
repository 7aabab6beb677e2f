"""Every table a report or a paper needs: `evaluate` for fitted things, `compare` for refits over random halves."""

from atypicality.evaluation.fitted import evaluate
from atypicality.evaluation.result import Evaluation
from atypicality.evaluation.splits import compare

__all__ = ["Evaluation", "compare", "evaluate"]
