"""Answers whose chance of being correct is known: log-odds behind token log-probabilities, samples and scores."""

import numpy as np
from scipy.special import expit

from atypicality.llm import Answers


def answer_world(n, seed, *, useful=True, rate=None, embeddings=False, scores_alone=False):
    """Answers with all kinds of signals, some of them missing, and the true chance (n,) that each is correct.

    Without `useful` no signal says anything; with `rate` every answer is correct with that chance. With `scores_alone`
    there are neither tokens nor samples, which make most signals and take most of the time of a fit.
    """
    rng = np.random.default_rng(seed)
    shown, hidden = 1.0 + 2.0 * rng.normal(size=n), rng.normal(size=n)
    chance = np.full(n, rate) if rate is not None else expit(shown + 0.5 * hidden)
    if not useful:
        shown = 1.0 + 2.0 * rng.normal(size=n)
    spread = np.log1p(np.exp(-shown))  # mean negative log-probability of a token: bent in the log-odds
    tokens = [-rng.gamma(2.0, value / 2, size=size) for value, size in zip(spread, 1 + rng.poisson(1, n), strict=True)]
    samples = [["yes" if hit else "no" for hit in row] for row in rng.random((n, 4)) < expit(shown)[:, None]]
    verbalised = expit(shown + rng.normal(size=n))
    verbalised[rng.random(n) < 0.3] = np.nan
    points = rng.normal(size=(n, 3)) * np.exp(-shown / 4)[:, None]
    answers = Answers(
        [f"question {row}" for row in range(n)],
        ["yes"] * n,
        log_probs=None if scores_alone else tokens,
        samples=None if scores_alone else samples,
        scores={
            "verbalised": verbalised,
            "noise": rng.normal(size=n),
            "prompt_log_likelihood": -rng.gamma(3.0, size=n),
        },
        correct=rng.random(n) < chance,
        ids=np.arange(n),
        prompt_embeddings=points if embeddings else None,
    )
    return answers, chance
