"""Verdicts in words: a line for every statement with its statistic, interval and n, and a line that counts them."""

from collections.abc import Sequence

from atypicality.paper.claims import HOLDS, NOTHING, UNTESTED, Verdict

__all__ = ["counted", "judged"]


def counted(verdicts: Sequence[Verdict]) -> str:
    """How many of the paper's statements hold on one data set, ours and by the paper's own row."""
    stated = [verdict for verdict in verdicts if not verdict.aside]
    tested = [verdict for verdict in stated if verdict.verdict != UNTESTED]
    idle, asides = len(stated) - len(tested), [verdict.aside for verdict in verdicts if verdict.aside]
    shown = [verdict.paper > 0 for verdict in stated if verdict.paper is not None]
    held = sum(verdict.verdict == HOLDS for verdict in tested)
    words = [f"{held} of {len(tested)} statements hold{_by_estimator(tested)}"]
    words += [f"{idle} not tested"] if idle else []
    words += [f"the paper's own row shows {sum(shown)} of the {len(shown)} it can"] if shown else []
    words += [f"{len(asides)} not counted ({', '.join(dict.fromkeys(asides))})"] if asides else []
    return f"{verdicts[0].where.partition(', ')[0]}: {', '.join(words)}"


def _by_estimator(verdicts: Sequence[Verdict]) -> str:
    """The same count for each estimator of atypicality, where there are several and not everything holds."""
    found: dict[str, list[bool]] = {}
    for verdict in verdicts:
        found.setdefault(verdict.where.partition(", ")[2], []).append(verdict.verdict == HOLDS)
    if len(found) < 2 or all(map(all, found.values())):
        return ""
    return f" ({', '.join(f'{name}: {sum(held)} of {len(held)}' for name, held in found.items())})"


def judged(verdict: Verdict) -> str:
    """Verdict, statement, statistic with its interval, n, and what the paper's own row says."""
    where = f"{verdict.aside}; {verdict.where}" if verdict.aside else verdict.where
    if verdict.verdict == UNTESTED:
        why = "one seed gives no interval" if verdict.n == 1 else "it cannot be told from these outputs"
        why = f"needs {verdict.missing}" if verdict.missing else why
        why = NOTHING if verdict.missing == NOTHING else why
        return f"{UNTESTED.upper()}: {verdict.statement} ({where}; {why}; n = {verdict.n})"
    rows = f" {verdict.spread}" + (f" of {verdict.n_rows:,} rows" if verdict.n_rows else "")
    paper = "; equal in all, which gives no interval" if verdict.equal else ""
    if verdict.paper is not None:
        paper += f"; the paper's own row: {verdict.paper:.3g}" + ("" if verdict.paper > 0 else ", does not show it")
    return (
        f"{verdict.verdict.upper()}: {verdict.statement} ({where}; {verdict.statistic} {verdict.value:.3g}, "
        f"95 % [{verdict.low:.3g}, {verdict.high:.3g}], n = {verdict.n}{rows}{paper})"
    )
