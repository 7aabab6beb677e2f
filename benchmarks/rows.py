"""One line of the table of peers, and how a contest between us and several peers becomes such lines."""

import importlib.metadata
import importlib.util
import math
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.timing import measure, thread_turns

__all__ = ["AUTHORS", "COLUMNS", "Peer", "Row", "contest"]

AUTHORS = "paper's algorithm"
"""A peer without a package: written in `benchmarks.authors` from the paper's description."""
ALONE = 1.15
"""Cores that a call on one thread keeps busy at most."""
PACKAGES = {"scikit-learn": "sklearn", "faiss-cpu": "faiss", "torch-uncertainty": "torch_uncertainty"}
"""Import names of peers where they differ from the name of the package."""
COLUMNS = (
    "stage",
    "size",
    "against",
    "times faster",
    "seconds on one thread: ours, theirs",
    "wall seconds, default threads: ours (gain over one thread), theirs",
    "ours / bare cost",
    "accuracy: ours, theirs (smaller is better)",
    "peak MB: ours, theirs",
    "target",
    "outcome",
)


@dataclass(frozen=True)
class Row:
    """One stage against one peer on the same arrays.

    Every number is smaller-is-better except the ratio. `target` is "quantity relation bound", for example
    "bare <= 1.5" or "ratio >= 12". `if_slower` and `if_worse` are the reasons that are shown only where they apply.
    """

    stage: str
    size: str
    peer: str = ""
    call: str = ""
    version: str = ""
    seconds: float = math.nan
    peer_seconds: float = math.nan
    bare_seconds: float = math.nan
    bare_of: str = ""
    accuracy: str = ""
    error: float = math.nan
    peer_error: float = math.nan
    slack: float = 0.0
    megabytes: float = math.nan
    peer_megabytes: float = math.nan
    target: str = ""
    if_slower: str = ""
    if_worse: str = ""
    note: str = ""
    quality: str = ""
    peer_quality: str = ""
    alone: float = math.nan
    wall: float = math.nan
    peer_wall: float = math.nan
    busy: float = math.nan

    @property
    def ratio(self) -> float:
        """How many times faster we are than the peer."""
        return self.peer_seconds / self.seconds

    @property
    def bare(self) -> float:
        """Our time in units of what the stage cannot avoid."""
        return self.seconds / self.bare_seconds

    @property
    def gain(self) -> float:
        """How many times faster we are with default threads than on one, by the clock, in calls that took turns."""
        return self.alone / self.wall

    @property
    def threads(self) -> str:
        """What default threads bring, in words; nothing where it was not measured."""
        if self.gain != self.gain:
            return ""
        return "one thread" if self.busy <= ALONE else f"{self.gain:.2f}"

    @property
    def met(self) -> bool:
        """Whether the measured quantity keeps its target."""
        if not self.target:
            return True
        quantity, relation, bound = self.target.split()
        value = getattr(self, quantity)
        return bool(value <= float(bound) if relation == "<=" else value >= float(bound))

    @property
    def slower(self) -> bool:
        """Whether the peer was faster."""
        return self.ratio < 1

    @property
    def worse(self) -> bool:
        """Whether the peer was more accurate by more than `slack`."""
        return self.error > self.peer_error + self.slack

    @property
    def ok(self) -> bool:
        """Target kept, and ahead of the peer at equal or better accuracy or with a reason why not."""
        return self.met and not (self.slower and not self.if_slower) and not (self.worse and not self.if_worse)

    @property
    def outcome(self) -> str:
        """The verdict in words."""
        words = []
        if self.slower:
            words.append("behind: " + (self.if_slower or "NO REASON GIVEN"))
        if self.worse:
            words.append("less accurate: " + (self.if_worse or "NO REASON GIVEN"))
        if not self.met:
            words.append(f"MISSES ITS TARGET {self.target}")
        if self.peer and not self.slower:
            words.append("ahead in speed" if self.worse else "ahead")
        if self.note:
            words.append(self.note)
        return "; ".join(words) or "target kept"

    def cells(self) -> list[str]:
        """Its line of the table, as text, in the order of `COLUMNS`."""
        against = " ".join(part for part in (self.peer, self.version) if part)
        return [
            self.stage,
            self.size,
            f"{against}: {self.call}" if self.call else against or "its own target",
            _number(self.ratio),
            _pair(_number(self.seconds), _number(self.peer_seconds)),
            _pair(f"{_number(self.wall)} ({self.threads})" if self.threads else "", _number(self.peer_wall)),
            f"{self.bare:.2f} ({self.bare_of})" if self.bare_of else "",
            f"{self.accuracy}: {_pair(_judged(self.error, self.quality), _judged(self.peer_error, self.peer_quality))}"
            if self.accuracy
            else "",
            _pair(_number(self.megabytes, ".0f"), _number(self.peer_megabytes, ".0f")),
            self.target,
            self.outcome,
        ]

    def record(self) -> dict[str, Any]:
        """Everything measured, as JSON keeps it."""
        kept = {key: None if value != value else value for key, value in asdict(self).items()}
        derived = {"ratio": self.ratio, "bare": self.bare, "gain": self.gain}
        return kept | {key: None if value != value else value for key, value in derived.items()} | {"ok": self.ok}


@dataclass(frozen=True)
class Peer:
    """Who else can do it: the name of its package, the call as a user would write it, and a function that makes it."""

    name: str
    call: str
    run: Callable[[], Any]
    target: str = ""
    if_slower: str = ""
    if_worse: str = ""
    note: str = ""

    @property
    def installed(self) -> bool:
        """Whether it is there to be measured, and loaded before the clock starts; who is not is named on stderr."""
        if self.name == AUTHORS:
            return True
        module = PACKAGES.get(self.name, self.name)
        if importlib.util.find_spec(module) is None:
            print(f"  {self.name} is not installed: left out", file=sys.stderr)
            return False
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about optional parts of their own
                importlib.import_module(module)
        except (ImportError, RuntimeError) as error:  # installed without what it needs, or for another torch
            print(f"  {self.name} cannot be loaded ({error}): left out", file=sys.stderr)
            return False
        return True

    @property
    def version(self) -> str:
        """Of its package."""
        return "" if self.name == AUTHORS else importlib.metadata.version(self.name)


def contest(
    stage: str,
    size: str,
    ours: Callable[[], Any],
    peers: Sequence[Peer],
    *,
    bare: Callable[[], Any] | None = None,
    bare_of: str = "",
    accuracy: str = "",
    error: Callable[[Any], float] | None = None,
    slack: float = 0.0,
    targets: Sequence[str] = (),
    quality: Callable[[Any], str] | None = None,
    plain: bool = False,
    repeats: int = 3,
    note: str = "",
) -> list[Row]:
    """Measure us, the peers and the bare cost in turns; one row for each target of ours, then one for each peer.

    `quality` is more to know of an answer, in words. With `plain` seconds are the best of plain calls one after
    the other: turns and counting of memory weigh on calls of milliseconds.
    """
    assert targets or peers, f"no row would show what was measured of {stage}, {size}"
    print(f"{stage}, {size}", file=sys.stderr, flush=True)
    there = {f"{peer.name}: {peer.call}": peer for peer in peers if peer.installed}
    runs = {"ours": ours} | ({"bare": bare} if bare else {}) | {key: peer.run for key, peer in there.items()}
    found = measure(runs, repeats=repeats, plain=plain)
    said = {key: quality(one.result) if quality and key != "bare" else "" for key, one in found.items()}
    errors = {key: error(one.result) if error and key != "bare" else math.nan for key, one in found.items()}
    alone, wall, busy = thread_turns(ours)
    common = {
        "stage": stage,
        "size": size,
        "seconds": found["ours"].seconds,
        "alone": alone,
        "wall": wall,
        "busy": busy,
        "bare_seconds": found["bare"].seconds if bare else math.nan,
        "bare_of": bare_of,
        "accuracy": accuracy,
        "error": errors["ours"],
        "quality": said["ours"],
        "slack": slack,
        "megabytes": found["ours"].megabytes,
    }
    rows = [Row(**common, target=target, note=note) for target in targets]
    for key, peer in there.items():
        rows.append(
            Row(
                **common,
                peer=peer.name,
                call=peer.call,
                version=peer.version,
                peer_seconds=found[key].seconds,
                peer_wall=found[key].wall,
                peer_error=errors[key],
                peer_quality=said[key],
                peer_megabytes=found[key].megabytes,
                target=peer.target,
                if_slower=peer.if_slower,
                if_worse=peer.if_worse,
                note=peer.note,
            )
        )
    return rows


def _number(value: float, layout: str = ".3g") -> str:
    return "" if math.isnan(value) else format(value, layout)


def _digits(value: float) -> str:
    """An error: losses need their digits, rounding does not.

    >>> _digits(0.8864123), _digits(2.22e-16)
    ('0.886412', '2e-16')
    """
    return _number(value, ".0e" if 0 < value < 1e-5 else ".6g")


def _judged(error: float, quality: str) -> str:
    return f"{_digits(error)} ({quality})" if quality else _digits(error)


def _pair(ours: str, theirs: str) -> str:
    return ", ".join(text for text in (ours, theirs) if text)
