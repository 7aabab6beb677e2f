"""The report's words: of a classifier's predictions, or of the answers of a language model."""

from atypicality.evaluation import Evaluation
from atypicality.evaluation.tables import BACKWARDS

__all__ = ["ANSWERS", "words_of"]

PREDICTIONS = {
    "sample": "sample",
    "samples": "samples",
    "Samples": "Samples",
    "prediction": "prediction",
    "predictions": "predictions",
    "confidence": "confidence",
    "right": "right",
    "Accuracy": "Accuracy",
    "accuracy_stayed": "stayed at",
    "labelled": "labelled samples",
    "calibration_rows": "calibration rows",
    "whose_confidence": "the model’s confidence",
    "below_the_line": "below it the model is overconfident",
    "alpha": "target of prediction sets: allowed share of misses",
    "backwards": BACKWARDS,
}
ANSWERS = {
    "sample": "answer",
    "samples": "answers",
    "Samples": "Answers",
    "prediction": "answer",
    "predictions": "answers",
    "confidence": "P(correct)",
    "right": "correct",
    "Accuracy": "The accuracy of the answers",
    "accuracy_stayed": "is",
    "labelled": "answers that were checked",
    "calibration_rows": "answers that were checked",
    "whose_confidence": "P(correct)",
    "below_the_line": "below it too high",
    "alpha": "alpha: P(correct) of at least 1 - alpha is to be trusted",
    "backwards": "answers to usual prompts are wrong more often than those to rare ones, so low atypicality is no sign "
    "of a correct answer here. Go by P(correct); fit with other embeddings, or with atypicality=None",
}


def words_of(evaluation: Evaluation) -> dict[str, str]:
    """What the report writes in the place of names in braces.

    >>> import atypicality as aty
    >>> words_of(aty.evaluate("uncalibrated", aty.datasets.make_world(500).outputs()))["samples"]
    'samples'
    """
    return ANSWERS if evaluation.settings.get("of") == "answers" else PREDICTIONS
