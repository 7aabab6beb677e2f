"""What has moved in the signals of new answers: values missing more often, out of their range, or larger or smaller."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.head.drift import CHANCE, FEWEST_MOVED
from atypicality.outputs.packing import ENOUGH_ROWS

__all__ = [
    "EMPTY", "LEVEL", "MISSING", "beyond_range", "empty_words", "fisher_chance", "lacking_words", "level_words",
    "missing_columns", "moved_words", "outside_words", "untried",
]  # fmt: skip

MISSING = "missing "  # before the name of a field, in that of the attribute that says which answers lack it
WORDS = ("no", "yes", "out", "far")
"""Whether an answer lacks the field; or has it outside the fitted range, or further out than that is wide."""
EMPTY = "answer"  # the field that an empty answer lacks
LEVEL = "level of "  # before the name of a signal, in that of the attribute that says at or below which edge it is
LEAST_MOVED = 0.1  # of the rows, that have gone from one side of an edge to the other

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


def _known(
    start: str, attributes: Mapping[str, NDArray[Any]], held_out: Mapping[str, Mapping[str, int]]
) -> Iterator[tuple[str, NDArray[Any], Mapping[str, int]]]:
    """Fields of attributes that begin so: the words (n,) of these rows, and the counts of words in held-out ones."""
    for name, words in attributes.items():
        if name.startswith(start) and (counts := held_out.get(f"attribute {name}")) is not None:
            yield name.removeprefix(start), words, counts


def outside_words(attributes: Mapping[str, NDArray[Any]], held_out: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Fields whose values are outside their fitted range in more rows than chance explains, or far outside in one."""
    found = []
    for field, words, known in _known(MISSING, attributes, held_out):
        count, before = int(np.isin(words, WORDS[2:]).sum()), sum(known.get(word, 0) for word in WORDS[2:])
        if count and (
            (words == WORDS[3]).any()
            or len(attributes) * fisher_chance(count, len(words), before, sum(known.values())) < CHANCE
        ):
            found.append(field)
    return found


def level_words(values: Vector, edges: Vector) -> NDArray[np.str_]:
    """The smallest of the edges (m,) at or above each value (n,), as a word: "inf" beyond them, "nan" where unknown.

    >>> level_words(np.array([1.0, 3.0, 4.0, np.nan]), np.array([2.0, 3.0])).tolist()
    ['2.0', '3.0', 'inf', 'nan']
    """
    found = np.append(edges, np.inf)[np.searchsorted(edges, values)]
    return np.where(np.isnan(values), np.nan, found).astype(str)


def moved_words(attributes: Mapping[str, NDArray[Any]], held_out: Mapping[str, Mapping[str, int]]) -> dict[str, str]:
    """Signals that are larger or smaller than in held-out rows, and how, in words; of at least 100 rows that have it.

    The share of rows at or below an edge, which the rows that fitted P(correct) have set, differs by a tenth or more,
    and by Fisher's test with a chance below one in a million for all edges of all signals, both ways, together.

    >>> held_out = {"attribute level of judge": {"1.0": 500, "inf": 500}}
    >>> moved_words({"level of judge": np.repeat(["1.0", "inf", "nan"], [20, 180, 50])}, held_out)
    {'judge': 'larger than in the held-out answers: 10.0% of 200 that have it are at or below 1, and 50.0% of those'}
    """
    columns = list(_known(LEVEL, attributes, held_out))
    n_tests = 2 * sum(len(counts) for *_, counts in columns)
    found = {}
    for name, words, counts in columns:
        new = dict(zip(*(part.tolist() for part in np.unique(words, return_counts=True)), strict=True))
        tested = [(_gap(edge, new, counts), edge) for edge in map(float, counts) if np.isfinite(edge)]
        gap, edge = max(tested, key=lambda one: abs(one[0]), default=(0.0, 0.0))
        (below, n), (before, n_before) = (_at_or_below(edge, rows) for rows in (new, counts))
        if n < ENOUGH_ROWS or abs(gap) < LEAST_MOVED:
            continue
        sides = (below, n, before, n_before) if gap > 0 else (n - below, n, n_before - before, n_before)
        if n_tests * fisher_chance(*sides) < CHANCE:
            found[name] = (
                f"{'smaller' if gap > 0 else 'larger'} than in the held-out answers: {below / n:.1%} of {n:,} that "
                f"have it are at or below {edge:.4g}, and {before / n_before:.1%} of those"
            )
    return found


def _at_or_below(edge: float, counts: Mapping[str, int]) -> tuple[int, int]:
    """Rows at or below an edge, and rows with a value, of counts by `level_words`."""
    known = [(float(word), count) for word, count in counts.items() if word != "nan"]
    return sum(count for level, count in known if level <= edge), sum(count for _, count in known)


def _gap(edge: float, new: Mapping[str, int], held_out: Mapping[str, int]) -> float:
    """By how much more of the new rows are at or below an edge, as a share."""
    (below, n), (before, n_before) = (_at_or_below(edge, rows) for rows in (new, held_out))
    return below / max(n, 1) - before / max(n_before, 1)


def lacking_words(
    attributes: Mapping[str, NDArray[Any]], held_out: Mapping[str, Mapping[str, int]]
) -> dict[str, tuple[float, float]]:
    """Fields that these rows lack far more often than held-out ones: the share of both, by field.

    That is at least twice as often, or so that at most half as many have it, with a chance below one in a million.
    """
    found = {}
    for field, words, known in _known(MISSING, attributes, held_out):
        count, n = int((words == WORDS[1]).sum()), len(words)
        before, n_before = known.get(WORDS[1], 0), sum(known.values())
        share, expected = count / max(n, 1), before / n_before
        if count < FEWEST_MOVED or not (share >= 2 * expected or 1 - share <= (1 - expected) / 2):
            continue
        if len(attributes) * fisher_chance(count, n, before, n_before) < CHANCE:
            found[field] = share, expected
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
