"""The page's words: of predictions, or of answers where an answer head was evaluated."""

import re

from atypicality.evaluation import Evaluation

__all__ = ["spoken", "words_of"]

ANSWERS = (
    ("target of prediction sets: allowed share of misses", "alpha: P(correct) of at least 1 - alpha is to be trusted"),
    ("samples, 2 classes", "answers"),
    ("labelled samples", "answers that were checked"),
    ("Accuracy stayed at", "The accuracy of the answers is"),
    ("accuracy stayed at", "accuracy is"),
    ("the model’s confidence", "P(correct)"),
    ("below it the model is overconfident", "below it too high"),
    ("Confidence", "P(correct)"),
    ("confidence", "P(correct)"),
    ("predictions", "answers"),
    ("prediction", "answer"),
    ("Samples", "Answers"),
    ("samples", "answers"),
    ("sample", "answer"),
    ("calibration rows", "answers that were checked"),
    ("right", "correct"),
)
"""What stands in the place of our words for classifiers; the longest first."""
APART = re.compile(r"(<(bdi|h1|data)\b.*?</\2>|<[^>]*>)", re.DOTALL)
"""Markup, and what is a name, a title or a number."""


def words_of(evaluation: Evaluation) -> tuple[tuple[str, str], ...]:
    """Pairs of words and what to say instead; none of a classifier.

    >>> import atypicality as aty
    >>> words_of(aty.evaluate("uncalibrated", aty.datasets.make_world(500).outputs()))
    ()
    """
    return ANSWERS if evaluation.settings.get("of") == "answers" else ()


def spoken(words: tuple[tuple[str, str], ...], markup: str) -> str:
    """The same markup with our text in other words; names, titles and numbers stay.

    >>> spoken(ANSWERS, "<p class=sample>The sample <bdi>sample</bdi>: confidence <data>1</data></p>")
    '<p class=sample>The answer <bdi>sample</bdi>: P(correct) <data>1</data></p>'
    """
    parts = APART.split(markup)  # text, markup and the tag's name by turns
    for place in range(0, len(parts), 3):
        for old, new in words:
            parts[place] = re.sub(rf"\b{old}\b", new, parts[place])
    return "".join(part for place, part in enumerate(parts) if place % 3 < 2)
