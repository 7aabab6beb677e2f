r"""
A language model that always says "Positive"
============================================

A small language model classifies reviews by what it would say next. Its favourite
answer wins nearly always. Log-probabilities that were computed elsewhere, for example
by a server, are enough to correct it, and to say which prompts are unlike what the
model knows.
"""

# %%
# Log-probabilities from a file
# -----------------------------
# One JSON object for each prompt: the log-probability of its tokens, and of the words
# that may answer it. These are of SmolLM2-135M-Instruct for 800 short reviews, some of
# them in rare words, in capitals, or with their words out of order. The file is
# ``examples/data/reviews.jsonl``; the script beside it made both the reviews and the
# scores.

import json
import sys
from pathlib import Path

from scipy.special import softmax

import atypicality as aty
from atypicality.llm import PrecomputedScorer, PromptClassifier, Template

path = Path(sys.argv[0]).parent / "data" / "reviews.jsonl"  # beside this script
lines = path.read_text(encoding="utf-8").splitlines()
records = [record for record in map(json.loads, lines) if "review" in record]
reviews = [record["review"] for record in records]
labels = [record["label"] for record in records]

# %%
# From prompts to outputs
# -----------------------
# The logits of a review are the log-probabilities of the two words; its atypicality is
# the negative log-likelihood of the whole prompt. A model in memory
# (``TransformersScorer``) or behind a server (``OpenAICompatibleScorer``) takes the
# place of the file without further changes.

template = Template("Review: {input}\nSentiment:", ["Positive", "Negative"])
classifier = PromptClassifier(PrecomputedScorer(path), template)
outputs = classifier.outputs(reviews, labels=labels)
calibration, test = outputs.split(0.5)
print(test)

# %%
# The favourite answer
# --------------------
# Whatever the review says, "Positive" is likelier. Zhao et al. (2021) ask the model
# about inputs without content, such as "N/A", and divide by what it says to them. The
# head learns from 400 labelled reviews.

content_free = aty.ContentFreeCalibration().fit(classifier.content_free())
head = aty.ReliabilityHead().fit(calibration=calibration)
methods = {"model": "uncalibrated", "content-free": content_free, "head": head}
evaluation = aty.evaluate(methods, test, n_groups=4)

positive = (softmax(test.logits, axis=1).argmax(axis=1) == 0).mean()
print(f"the model says Positive to {positive:.0%} of the reviews")
overall = evaluation.table("overall")
measured = {(row["method"], row["metric"]): row["value"] for row in overall}
for name in methods:
    accuracy, ece = measured[name, "accuracy"], measured[name, "ece"]
    print(f"{name:13s} accuracy {accuracy:.1%}, ECE {ece:.1%}")

# %%
# Content-free calibration finds the right answers but not the right confidence: it is
# far too humble. The head is more accurate still, and means what it says.

assert positive > 0.9
accuracies = [measured[name, "accuracy"] for name in methods]
assert accuracies == sorted(accuracies)
assert measured["head", "ece"] < 0.1 < measured["content-free", "ece"]

# %%
# Which prompts are rare?
# -----------------------
# The three most typical test prompts and the three rarest, with their percentiles.

texts = [reviews[int(number)] for number in test.ids]
aty.charts.extreme_samples(evaluation, texts)

# %%
# Accuracy by how rare the prompt is
# ----------------------------------
# Even recalibrated, answers to the rarest fourth of the prompts are wrong most often.

rows = evaluation.table("atypicality_groups", method="head", metric="accuracy")
print(*(f"{row['value']:.1%}" for row in rows))
assert rows[-1]["value"] == min(row["value"] for row in rows)

# %%

# sphinx_gallery_thumbnail_number = 2
aty.charts.quality_by_group(evaluation, "accuracy")
