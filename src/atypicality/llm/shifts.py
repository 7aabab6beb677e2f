"""What has moved in the signals of new answers: values that are missing more often, and scores out of their range."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.head.drift import CHANCE, FEWEST_MOVED

__all__ = [
    "EMPTY", "MISSING", "beyond_range", "empty_words", "fisher_chance", "lacking_words", "missing_columns",
    "outside_words", "untried",
]  # fmt: skip

MISSING = "missing "  # before the name of a field, in that of the attribute that says which answers lack it
WORDS = ("no", "yes", "out", "far")
"""Whether an answer lacks the field; or has it outside the fitted range, or further out than that is wide."""
EMPTY = "answer"  # the field that an empty answer lacks

Vector = NDArray[np.float64]


def fisher_chance(count: int, n: int, held_out: int, n_held_out: int) -> float:
    """Chance that `count` or more of n rows are marked, if they are drawn as the held-out ones were (Fisher's test).

    Given how many are marked of both together, those among the n follow a hypergeometric law.

    >>> fisher_chance(2, 2, 0, 2)  # both marked rows of four are the new two: one pair of six
    0.166...
    """
    from scipy.stats import hypergeom

    return float(hypergeom.sf(count - 1, n + n_held_out, count + held_out, n))


def missing_columns(
    signals: Mapping[str, Vector], fields: Mapping[str, str], ranges: Mapping[str, Any] | None = None
) -> dict[str, NDArray[Any]]:
    """For each field the words (n,) "yes" of rows without it and "no" of others; `fields` has one signal of each.

    Of fields with a `SignalColumns` in `ranges`, values outside the fitted range are "out", or "far" where they are
    further out than it is wide.

    >>> columns = missing_columns({"agreement": np.array([0.5, np.nan])}, {"samples": "agreement"})
    >>> {name: words.tolist() for name, words in columns.items()}
    {'missing samples': ['no', 'yes']}
    """
    found = {}
    for field, name in fields.items():
        code = np.isnan(signals[name]).astype(np.intp)
        if (signal := (ranges or {}).get(field)) is not None and signal.least is not None:
            out = _outside(signal, signals[name])
            code = np.where(out > 0, np.where(out > signal.most - signal.least, 3, 2), code)
        found[MISSING + field] = np.array(WORDS)[code]
    return found


def empty_words(answers: Any) -> dict[str, NDArray[Any]]:
    """Which answers are empty although their prompts are not, as `missing_columns`."""
    pairs = zip(answers.prompts, answers.answers, strict=True)
    empty = np.array([bool(prompt) and not answer.strip() for prompt, answer in pairs], np.intp)
    return {MISSING + EMPTY: np.array(WORDS)[empty]}


def _outside(signal: Any, values: Vector) -> Vector:
    """By how much values (n,) lie outside the fitted range; negative within, NaN where unknown."""
    found: Vector = np.maximum(signal.least - values, values - signal.most)
    return found


def untried(attributes: Mapping[str, NDArray[Any]], needed: Collection[str], used: Collection[str]) -> Any:
    """Rows (n,) whose P(correct) no fitted row is like, so that they are not accepted; None without attributes.

    They lack a field of those `needed`, or all of several that are `used`, or have a value further outside the fitted
    range than that is wide.

    >>> lacks = {"missing logprobs": np.array(["no", "yes", "no"]), "missing samples": np.array(["no", "no", "yes"])}
    >>> untried(lacks, ["logprobs"], ["logprobs"]).tolist()
    [False, True, False]
    """
    columns = {name.removeprefix(MISSING): words for name, words in attributes.items() if name.startswith(MISSING)}
    if not columns:
        return None
    conditions = [words == WORDS[3] for words in columns.values()]
    conditions += [columns[name] == WORDS[1] for name in needed if name in columns]
    if len(used) > 1 and set(used) <= columns.keys():
        conditions.append(np.all([columns[name] == WORDS[1] for name in used], axis=0))
    return np.any(conditions, axis=0)


def outside_words(attributes: Mapping[str, NDArray[Any]], held_out: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Fields whose values are outside their fitted range in more rows than chance explains, or far outside in one."""
    found = []
    for name, words in attributes.items():
        known = held_out.get(f"attribute {name}")
        if not name.startswith(MISSING) or known is None:
            continue
        count, before = int(np.isin(words, WORDS[2:]).sum()), sum(known.get(word, 0) for word in WORDS[2:])
        chance = fisher_chance(count, len(words), before, sum(known.values()))
        if (words == WORDS[3]).any() or (count and len(attributes) * chance < CHANCE):
            found.append(name.removeprefix(MISSING))
    return found


def lacking_words(
    attributes: Mapping[str, NDArray[Any]], held_out: Mapping[str, Mapping[str, int]]
) -> dict[str, tuple[float, float]]:
    """Fields that these rows lack far more often than held-out ones: the share of both, by field.

    That is at least twice as often, or so that at most half as many have it, with a chance below one in a million.
    """
    found = {}
    for name, words in attributes.items():
        known = held_out.get(f"attribute {name}")
        if not name.startswith(MISSING) or known is None:
            continue
        count, n = int((words == WORDS[1]).sum()), len(words)
        before, n_before = known.get(WORDS[1], 0), sum(known.values())
        share, expected = count / max(n, 1), before / n_before
        if count < FEWEST_MOVED or not (share >= 2 * expected or 1 - share <= (1 - expected) / 2):
            continue
        if len(attributes) * fisher_chance(count, n, before, n_before) < CHANCE:
            found[name.removeprefix(MISSING)] = share, expected
    return found


def beyond_range(signal: Any, values: Vector) -> str:
    """What is wrong with values (n,) of a `SignalColumns` outside its fitted range, in words; empty if that is chance.

    One value that is further out than the range is wide is enough, as are more values outside than one in a million
    tables like the fitted one has.
    """
    known = values[~np.isnan(values)]
    if signal.least is None or signal.most is None or not known.size:
        return ""
    out, width = _outside(signal, known), signal.most - signal.least
    most = max(int((known < signal.least).sum()), int((known > signal.most).sum()))
    chance = 2 * fisher_chance(most, known.size, 0, signal.n_known) if most else 1.0
    if out.max() <= width and chance >= CHANCE:
        return ""
    rows = f"{(out > 0).sum():,} of {known.size:,} answer{'s' * (known.size > 1)} that have it"
    return (
        f"scores[{signal.name!r}] is outside its fitted range, {signal.least:.4g} to {signal.most:.4g}, in {rows}, "
        f"furthest at {known[out.argmax()]:.4g}: it counts as the end of it. If its scale has changed, fit again."
    )
