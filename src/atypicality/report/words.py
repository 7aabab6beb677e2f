"""The report's words: of a classifier's predictions, or of the answers of a language model."""

from atypicality.evaluation import Evaluation
from atypicality.evaluation.tables import BACKWARDS

__all__ = ["ANSWERS", "MEANINGS", "meanings_of", "words_of"]

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


MEANINGS = {
    "accuracy": "share of the {predictions} that are {right}",
    "confidence": "{confidence}, averaged over the {samples}",
    "overconfidence": "above 0 the {predictions} are overconfident, below 0 too cautious",
    "ece": "gap between {confidence} and accuracy in equal bins of {confidence}, averaged over {samples}; 0 is best",
    "rmsce": "as the ECE, with the root of the mean squared gap: large gaps count more",
    "adaptive_ece": "as the ECE, with equally populated bins",
    "classwise_ece": "as the ECE, of the probability of each class, averaged over the classes",
    "debiased_calibration_error": "squared gap over the bins, less what chance adds; about 0, or below, is best",
    "smooth_ece": "calibration error without bins, smoothed by a Gaussian; 0 is best",
    "nll": "mean of minus the logarithm of the probability of what was true; 0 is best, one certain error is infinite",
    "brier": "squared distance of the probabilities to what was true, summed over all classes: 0, the best, to 2",
    "risk_coverage_area": "share of errors among the most confident {predictions}, averaged over how many are kept",
    "coverage": "share of prediction sets that hold the true class",
    "set_size": "classes in a prediction set, averaged over the {samples}",
    "coverage_gap_class": "averaged over the true classes; too much coverage counts like too little",
    "coverage_shortfall_class": "above 0, some class is covered less often than the target",
    "coverage_gap_size": "of the sizes that are furthest from it, above or below",
    "worst_sixth_coverage": "share of prediction sets that hold the true class, in the sixth where it is lowest",
    "worst_cell_coverage": "share of prediction sets that hold the true class, in the cell where it is lowest",
    "worst_size_coverage": "share of prediction sets that hold the true class, for the sizes where it is lowest",
    "atypicality_gain": "how much better {confidence} and atypicality predict errors than {confidence} alone: log "
    "likelihood per {sample}; 0 or less is no gain",
    "atypicality_auroc": "chance that a wrong {prediction} has a higher atypicality than a {right} one (AUROC); 50% is "
    "no better than chance",
    "confidence_auroc": "chance that a wrong {prediction} has a lower {confidence} than a {right} one (AUROC); 50% is "
    "no better than chance",
    "accepted_share": "share of the {predictions} that are accepted at the allowed risk",
    "accepted_risk": "errors among the accepted {predictions}",
}
"""What each number over all samples is, for a reader of the page."""
ANSWERED = {
    "nll": "mean of minus the logarithm of the probability of what was true, correct or wrong; 0 is best",
    "brier": "squared distance of the probabilities to what was true, summed over correct and wrong: from 0, the best, "
    "to 2. Its half is the mean squared error of P(correct)",
}
"""The same where answers need other words."""


def meanings_of(evaluation: Evaluation) -> dict[str, str]:
    """What each metric of the table `overall` is, in the report's words.

    >>> import atypicality as aty
    >>> meanings_of(aty.evaluate("uncalibrated", aty.datasets.make_world(500).outputs()))["accuracy"]
    'share of the predictions that are right'
    """
    words = words_of(evaluation)
    told = MEANINGS | (ANSWERED if words is ANSWERS else {})
    found = dict.fromkeys(evaluation.tables["overall"]["metric"])
    return {metric: told[metric].format_map(words) for metric in found if metric in told}


def words_of(evaluation: Evaluation) -> dict[str, str]:
    """What the report writes in the place of names in braces.

    >>> import atypicality as aty
    >>> words_of(aty.evaluate("uncalibrated", aty.datasets.make_world(500).outputs()))["samples"]
    'samples'
    """
    return ANSWERS if evaluation.settings.get("of") == "answers" else PREDICTIONS
