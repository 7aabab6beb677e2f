"""An answer head in words: the summary that a terminal shows, and the card of its bundle."""

from typing import Any

from atypicality.formula import ADVICE
from atypicality.shipping.card import STATED, advice_table, escape

__all__ = ["described", "model_card"]

REPORTED = ("nll", "ece", "auroc")
NEVER = "  max_risk           nothing is accepted at any"


def described(head: Any) -> str:
    """A fitted answer head as a few lines of text."""
    lines = ["AnswerHead", "  rows      " + ", ".join(f"{name} {size:,}" for name, size in head.sizes_.items())]
    lines += ["  signals   nats of evidence beyond the others; AUROC alone, on the held-out rows that have it"]
    alone = {name: f"{value:8.3f}" for name, value in head.auroc_alone_.items()}
    lines += [f"    {name:<20} {worth:8.1f}{alone.get(name, '')}" for name, worth in head.evidence_.items()]
    lines += ["  all held-out rows  base rate -> head"]
    before, after = head.metrics_["base rate"], head.metrics_["head"]
    told = {name: f"{before[name]:.4f} -> {after[name]:.4f}" for name in REPORTED if name in before}
    told |= {"ece": f"{after['ece']:.4f}"} if "ece" in told else {}  # the base rate has none, and no use
    lines += [f"    {name:<14} {values}" for name, values in told.items()]
    least = head.abstention_.least_risk()
    lines += [f"  max_risk           nothing is accepted below about {least:g}" if least else NEVER]
    shown = [(word, head.advice_[word]) for word in ADVICE if head.advice_.get(word, {}).get("count")]
    lines += [f"  {word:<16} right for {row['right']:,} of {row['count']:,}" for word, row in shown]
    return "\n".join(lines)


def model_card(head: Any) -> str:
    """The card of a fitted answer head, as Markdown."""
    evidence = "\n".join(f"- {escape(name)}: {worth:.1f} nats" for name, worth in head.evidence_.items())
    after, flat, n = head.metrics_["head"], head.metrics_["base rate"], head.sizes_["thresholds"]
    scores = "\n".join(f"- {name}: {after[name]:.4f} (base rate alone: {flat[name]:.4f})" for name in after)
    return (
        "# Answer head\n\nChance that an answer of one language model is correct. Read it with "
        f"`atypicality.llm.AnswerHead.load(folder)`.\n\n{STATED}\n\n## Signals\n\nEvidence that each adds to the "
        f"others:\n\n{evidence}\n\n## On {n:,} held-out answers\n\n{scores}{advice_table(head)}\n\n## Limits\n\n"
        "- All numbers and guarantees are for answers like those it was fitted on: the same model, prompts and "
        "sampling. Fit again where these change.\n"
    )
