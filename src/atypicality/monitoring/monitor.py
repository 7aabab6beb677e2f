"""A monitor of a head in use: rows come in, alarms with a stated false-alarm rate and estimates come out."""

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality.arrays import to_host
from atypicality.head.reliability import Reliability
from atypicality.monitoring.accuracy import (
    AccuracyEstimate,
    calibrated_mix,
    doubting,
    estimated,
    moved_rows,
    need_reference,
)
from atypicality.monitoring.counting import (
    count_rows,
    judged,
    n_bins,
    profile_of,
    profile_size,
    reference_of,
    rows_of,
)
from atypicality.monitoring.overview import overview, window_name
from atypicality.monitoring.seen import new_labels, new_rows, row_hashes
from atypicality.monitoring.state import Alarm, Counted, MonitorState, saved_file
from atypicality.monitoring.streams import ShareTests, accepted_rows, make_streams, outside, window_rows
from atypicality.monitoring.summary import summarised
from atypicality.monitoring.windows import as_text, check_window, first_second, times, window_keys
from atypicality.outputs import ModelOutputs, check_outputs
from atypicality.outputs.class_names import encode_labels
from atypicality.recalibration.class_prior import is_estimated
from atypicality.shipping.bundle import read_part, saved_class, write_part
from atypicality.shipping.bundle.document import NAME, STATE, BundleError
from atypicality.terminal import listed
from atypicality.validation import check_alpha, check_integer, check_labels, warn

__all__ = ["Monitor"]

CARD = (
    "# State of a monitor\n\nCounts of rows that a reliability head judged, by window of time. It holds no row. Rows "
    "are remembered by hashes of their ids and logits. Read it with `aty.Monitor.load(folder, head)`.\n"
)


class Monitor:
    """Watch a fitted head in use, with one false-alarm rate for the whole life of the monitor.

    Rows are counted in cells of atypicality, confidence, predicted class and, with labels, of errors, of sets that
    miss the label, and with `max_risk` of errors among accepted rows. An alarm is raised when the confidence sequence
    of a share, over all rows from the start of some window on, is disjoint from the band that the reference rows give,
    or from what `max_risk` allows. Without a change of the distribution the chance that there is ever an alarm is at
    most `alpha`, at however many looks. The state holds counts, and hashes of the newest rows that came with a key.

    Parameters
    ----------
    head : ReliabilityHead
        Fitted.
    reference : ModelOutputs, optional
        Labelled rows that the head was not fitted on. They bring the columns of the embeddings, attributes and words
        such as the quadrant to the tests. By default the counts of the head's own held-out rows are the reference.
    alpha : float in (0, 1), default=0.01
        Chance of any alarm over the whole life without a change; half is for the reference's bands.
    window : "hour", "day", "week", "month", or float, default="day"
        Of UTC, or a number of seconds.
    keep : int, default=400
        Windows that are kept apart. Older ones become one.
    max_risk : float in (0, 1), optional
        With which `predict` is asked in use. What is accepted at this risk, and how many accepted rows with a label are
        wrong, is then counted by window, and tested: an alarm says that more of them are wrong than that share, which
        is no false alarm of a head that never met its risk.

    Examples
    --------
    >>> from atypicality.datasets import load_fashion_mnist
    >>> from atypicality.head import ReliabilityHead
    >>> train, calibration, test = load_fashion_mnist()
    >>> monitor = Monitor(ReliabilityHead().fit(train=train[:2000], calibration=calibration[:1000]))
    >>> monitor.add(test, at="2026-01-01T00:00:00+00:00")
    []
    >>> monitor.n_rows, monitor.n_labelled
    (5000, 5000)
    """

    def __init__(
        self,
        head: Any,
        reference: ModelOutputs | None = None,
        *,
        alpha: float = 0.01,
        window: str | float = "day",
        keep: int = 400,
        max_risk: float | None = None,
    ) -> None:
        held_out = need_reference(head)
        if is_estimated(getattr(head.recalibration_, "class_prior", None)):
            raise ValueError(
                "head must judge each row by itself to be monitored; its class prior is estimated from the rows of "
                "each call. Monitor a head without class_prior='estimate', and give class_mix= to estimated_accuracy."
            )
        if reference is not None:
            self._check_reference(head, reference)
            held_out = reference_of(*judged(head, reference))
        empty = np.zeros((0, profile_size(head.n_classes_)), np.int64)
        state = MonitorState(
            head=head.fingerprint_,
            alpha=float(check_alpha(alpha)),
            window=check_window(window),
            keep=check_integer(keep, "keep", low=1),
            reference=held_out,
            n_thresholds=int(head.sizes_.get("thresholds", 0)),
            keys=np.zeros(0, np.int64),
            cells=empty[:, :0],
            profile=empty,
            max_risk=None if max_risk is None else float(check_alpha(max_risk, "max_risk")),
        )
        tests = self._use(head, state)
        self._state = replace(state, cells=np.zeros((0, tests.n_cells), np.int64))

    @staticmethod
    def _check_reference(head: Any, reference: ModelOutputs) -> None:
        if check_outputs(reference).fingerprint() == head.fingerprint_:
            raise ValueError(
                "reference must be rows that the head was not fitted on; these are its calibration rows, which it fits "
                "better than new ones. Leave reference out, or give other labelled rows."
            )

    def _use(self, head: Any, state: MonitorState) -> ShareTests:
        names = np.arange(head.n_classes_).astype(str) if head.class_names_ is None else head.class_names_
        sets, max_risk = head.prediction_sets_, state.max_risk
        streams = make_streams(state.reference, names.tolist(), sets, state.n_thresholds, max_risk)
        self.head, self._state = head, state
        self._found: tuple[MonitorState, list[Alarm]] | None = None
        self._tests = ShareTests(streams, state.alpha)
        return self._tests

    @property
    def n_rows(self) -> int:
        """Rows so far."""
        return int(self._state.profile[:, 0].sum())

    @property
    def n_labelled(self) -> int:
        """Labels so far."""
        return int(self._state.cells[:, self._place("error")].sum())

    @property
    def n_doubted(self) -> int:
        """Rows so far of batches whose logits did not fit their embeddings, or looked like probabilities."""
        return int(self._state.doubted.sum())

    @property
    def alarms(self) -> list[Alarm]:
        """Alarms so far, each when it was raised; one that was over may be raised again."""
        return list(self._state.alarms)

    @property
    def counted(self) -> dict[str, float]:
        """When batches with a key came, in seconds since 1970, by key; of the newest 10,000."""
        return dict(self._state.counted)

    def add(self, outputs: ModelOutputs, *, at: Any = None, key: str | None = None) -> list[Alarm]:
        """Count the rows of `outputs` and look: the alarms that are new.

        Labels, where the outputs have them, are counted too. `at` is when the rows came: None or "now", seconds
        since 1970, a datetime with a time zone, a date (its midnight in UTC), ISO text, or one of these for each row.
        Batches may come in any order from the first window on. A batch may have a `key`, such as
        `outputs.fingerprint()`: one that was counted before is refused, so that a job that is repeated counts no row
        twice. Of a batch with a key, rows with ids that were counted in another one, with the same id and logits, are
        left out with a warning, and so are their labels; the newest million rows are remembered. Rows that cannot be
        judged change nothing.

        A batch whose logits do not fit its embeddings, as those of other columns would, or look like probabilities, is
        counted with a warning. The accuracy of its windows is then not estimated.

        >>> from atypicality.datasets import load_fashion_mnist
        >>> from atypicality.head import ReliabilityHead
        >>> train, calibration, test = load_fashion_mnist()
        >>> monitor = Monitor(ReliabilityHead().fit(train=train[:2000], calibration=calibration[:1000]))
        >>> shirts = test[test.labels == 6]
        >>> print(*[alarm for alarm in monitor.add(shirts, at=0) if alarm.item == "Shirt"])
        class Shirt rose: ...
        """
        self._check_key(key)
        answer, ordered = judged(self.head, outputs, self.n_rows, self._state.max_risk)
        seconds, keys = self._when(at, len(ordered))
        hashes = None if key is None else row_hashes(ordered)
        new, labels = new_rows(self._state.seen, hashes, ordered), ordered.labels
        fresh = np.zeros(len(ordered), bool)
        if labels is not None:
            fresh = new if hashes is None else ~self._state.labelled.has(hashes)
        doubts = getattr(answer, "doubts", ())  # an answer head has made its logits itself
        if doubts:
            told = f"{ordered._called or 'the outputs'}: {' '.join(doubts)}"
            warn(f"{told} They are counted, and their accuracy is not estimated.")
        parts = []
        for window in np.unique(keys[new | fresh]):
            rows, known = (np.flatnonzero(marks & (keys == window)) for marks in (new, fresh))
            counted = count_rows(self._tests, answer[rows], ordered[rows], int(window))
            if labels is not None:
                counted.cells[:] += self._labelled(answer[known], to_host(labels)[known])
            counted.doubted[:] = rows.size if doubts else 0
            parts.append(counted)
        state = self._state.with_rows(parts, float(seconds[-1]), key)
        return self._look(state if hashes is None else state.remembering(hashes[new], hashes[fresh]))

    def add_labels(
        self,
        outputs: ModelOutputs | Reliability,
        labels: ArrayLike | None = None,
        *,
        ids: ArrayLike | None = None,
        at: Any = None,
        key: str | None = None,
    ) -> list[Alarm]:
        """Count labels that came late, for rows that were added without them: the alarms that are new.

        Parameters
        ----------
        outputs : ModelOutputs or Reliability
            The rows again, or what the head said of them: the monitor has kept neither. Where the monitor has a
            `max_risk`, what the head said at that risk.
        labels : array-like of shape (m,), optional
            Columns or names; by default those of `outputs`.
        ids : array-like of shape (m,), optional
            Which rows of `outputs`, by their ids, the labels are for; by default all, in order.
        at : as in `add`
            When the labels came: the window that they are counted in.
        key : str, optional
            As in `add`. Of `ModelOutputs` with ids and a key, labels of rows whose label was counted before are left
            out with a warning; one for a row that was never counted is warned of, as long as all rows are remembered.

        Returns
        -------
        list of Alarm
            Those that are new.
        """
        self._check_key(key)
        if isinstance(outputs, Reliability):
            answer, given, hashes = outputs.on_host(), None, None
            if answer.proba.shape[1] != self.head.n_classes_:
                raise ValueError(f"outputs must have {self.head.n_classes_} classes; got {answer.proba.shape[1]}.")
            if answer.accepted is None and (risk := self._state.max_risk) is not None:
                raise ValueError(f"outputs must say which rows are accepted: predict them with max_risk={risk:g}.")
        else:
            answer, ordered = judged(self.head, outputs, self.n_labelled, self._state.max_risk)
            given, hashes = ordered.labels, None if key is None else row_hashes(ordered)
        codes = self._codes(answer, labels, given)
        rows = rows_of(answer, ids, codes.size)
        seconds, keys = self._when(at, codes.size)
        new = np.ones(codes.size, bool)
        if hashes is not None:
            complete = self._state.seen.size == self.n_rows
            new = new_labels(self._state.labelled, hashes[rows], outputs, self._state.seen if complete else None)
        empty = np.zeros(self._state.profile.shape[1], np.int64)
        parts = []
        for window in np.unique(keys[new]):
            chosen = new & (keys == window)
            cells = self._labelled(answer[rows[chosen]], codes[chosen])
            parts.append(Counted(int(window), cells, empty, {}))
        state = self._state.with_rows(parts, float(seconds[-1]), key)
        return self._look(state if hashes is None else state.remembering(hashes[:0], hashes[rows[new]]))

    def _check_key(self, key: str | None) -> None:
        if key is not None and (when := self._state.counted.get(key)) is not None:
            raise ValueError(f"key must be new; {key!r} was counted at {as_text(when)}. Leave these rows out.")

    def _codes(self, answer: Reliability, labels: ArrayLike | None, given: Any) -> NDArray[np.intp]:
        """Labels as columns of the answer."""
        if labels is None and given is None:
            raise ValueError("labels must be given, or be in outputs.")
        codes = to_host(given) if labels is None else encode_labels(labels, answer.class_names)
        return check_labels(codes, n_classes=answer.proba.shape[1])

    def _labelled(self, answer: Reliability, labels: NDArray[Any]) -> NDArray[np.int64]:
        """Cells of errors, of misses, and of errors among accepted rows."""
        cells = np.zeros(self._tests.n_cells, np.int64)
        covered, wrong = answer.prediction_set[np.arange(labels.size), labels], answer.label != labels
        counted = {"error": wrong, "miss": ~covered}
        counted |= {} if answer.accepted is None else {"risk": wrong[answer.accepted]}
        for name, marks in counted.items():
            if (place := self._place(name)) is not None:
                hits = int(np.count_nonzero(marks))
                cells[place][:2] = hits, marks.size - hits
        return cells

    def _when(self, at: Any, n_rows: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Times and windows of rows; the windows before the first have no level to be tested at."""
        seconds, state = times(at, n_rows), self._state
        keys = window_keys(seconds, state.window)
        if keys[0] < state.first:
            raise ValueError(
                f"at must not be before the monitor's first {window_name(state.window)}, "
                f"{as_text(first_second(state.first, state.window))}; got {as_text(seconds[0])}. Count older rows in a "
                "monitor of their own, or begin a new one with them."
            )
        return seconds, keys

    def _look(self, state: MonitorState) -> list[Alarm]:
        """Take the state over, and raise what is outside there and was not outside before."""
        return self._raise(state, {alarm.what for alarm in self._outside()})

    def _raise(self, state: MonitorState, known: set[tuple[str, str, str]]) -> list[Alarm]:
        found = outside(self._tests, state)
        new = [alarm for alarm in found if alarm.what not in known and alarm not in state.alarms]
        self._state = replace(state, alarms=[*state.alarms, *new])
        self._found = self._state, found
        return new

    def _outside(self) -> list[Alarm]:
        """As `outside` of this state, which the last look has found."""
        if self._found is None or self._found[0] is not self._state:
            self._found = self._state, outside(self._tests, self._state)
        return self._found[1]

    def _place(self, name: str) -> Any:
        found = {stream.name: place for stream, place in zip(self._tests.streams, self._tests.places, strict=True)}
        return found.get(name)

    def moved(self) -> dict[str, list[Alarm]]:
        """What is outside its band now, by stream, the furthest first: which classes and which inputs moved.

        An alarm stays, as it was raised, until the rows since its start would raise none at one look of level 5 %.
        """
        found: dict[str, list[Alarm]] = {}
        for alarm in sorted(self._outside(), key=lambda alarm: alarm.gap, reverse=True):
            found.setdefault(alarm.stream, []).append(alarm)
        return found

    def estimated_accuracy(
        self, *, class_mix: Any = None, last: int | None = None, level: float = 0.9
    ) -> AccuracyEstimate:
        """Estimate the accuracy of the rows of the newest `last` windows, or of all, without their labels.

        `class_mix` and `level` are as in `estimate_accuracy`. Instead of rows there are their mean probabilities in
        cells of predicted class and confidence. With more than 70 classes there is the mean confidence alone. There is
        no estimate where more than a tenth of the rows came in batches whose logits look wrong; of fewer, all may be
        wrong, and `low` is lower by their share.
        """
        windows = None if last is None else check_integer(last, "last", low=1)
        sums, k = self._state.recent("profile", windows), self.head.n_classes_
        if not sums.size or not sums[0]:
            raise ValueError("there is no row in these windows to estimate an accuracy from. Add rows or windows.")
        if class_mix is not None and not n_bins(k):
            raise ValueError(
                f"class_mix cannot be used by a monitor of {k} classes, which stores their mean confidence alone. Pass "
                "the rows to estimate_accuracy."
            )
        profile = profile_of(sums, k, *self._moved_rows(windows))
        reference = self._state.reference
        calibrated = calibrated_mix(self.head, reference)
        found = estimated(profile, reference, class_mix, calibrated=calibrated, level=level, n_bootstrap=0)
        return doubting(found, int(self._state.recent("doubted", windows)[0]))

    def _moved_rows(self, last: int | None) -> tuple[float, float]:
        """Share of rows beyond the largest quantile of atypicality that is counted, and of rows that changed."""
        cells, place = self._state.recent("cells", last), self._place("atypicality")
        rare = None if place is None else cells[place]
        return moved_rows(self._state.reference, cells[self._place("class")][:-1], rare)

    def history(self, *, rolling: int = 1) -> list[dict[str, Any]]:
        """Shares in every window, one dict for each item of each stream; `rolling` windows together end in each."""
        return window_rows(self._tests, self._state, check_integer(rolling, "rolling", low=1))

    def merge(self, other: Self) -> Self:
        """A monitor that has seen the rows of this one and of the `other`, of the same head, reference and settings."""
        if not isinstance(other, Monitor):
            raise TypeError(f"other must be a Monitor; got {type(other).__name__}.")
        if differing := self._state.differing(other._state):
            raise ValueError(f"other must be a monitor like this one; it differs in {listed(differing)}.")
        if both := sorted(self._state.counted.keys() & other._state.counted.keys()):
            raise ValueError(f"other must be of other rows; both have counted those with the key {both[0]!r}.")
        if twice := int(np.count_nonzero(self._state.seen.has(other._state.seen.newer))):
            raise ValueError(f"other must be of other rows; both have counted {twice:,} with the same ids and logits.")
        merged = object.__new__(type(self))
        merged._use(self.head, self._state.merged(other._state))
        merged._raise(merged._state, {alarm.what for alarm in merged.alarms})
        return merged

    def differing(self, reference: ModelOutputs | None = None, **settings: Any) -> dict[str, Any]:
        """Which of the given `reference` and other settings of `Monitor` this one was not made with, and its own."""
        given = {*settings, *(["reference"] if reference is not None else [])}
        made = Monitor(self.head, reference, **settings)
        return {name: getattr(self._state, name) for name in self._state.differing(made._state) if name in given}

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the state to `folder`, as a head is written: whole, or not at all. The head is not in it."""
        if saved_file(folder) == NAME and saved_class(folder) != MonitorState.__name__:
            raise ValueError(f"folder must be the monitor's own; {str(folder)!r} holds a head.")
        write_part(self._state, MonitorState, folder, card=CARD, name=STATE)
        Path(folder, NAME).unlink(missing_ok=True)  # a state as it was called before

    @classmethod
    def load(cls, folder: str | os.PathLike[str], head: Any) -> Self:
        """Read the state that `save` wrote to `folder`, of a monitor of this `head`."""
        reference = need_reference(head)
        try:
            state: MonitorState = read_part(MonitorState, folder, what="monitor", name=saved_file(folder) or STATE)
        except BundleError as error:
            raise BundleError(f"the monitor in {os.fspath(folder)!r} cannot be read: {error}") from error
        if state.head != head.fingerprint_ or state.reference.labels.size != reference.labels.size:
            raise ValueError(
                "head must be the one that the monitor was made for; this one has other calibration rows. A new head "
                "needs a new monitor: give it a folder of its own, and keep this one for its history."
            )
        monitor = object.__new__(cls)
        monitor._use(head, state)
        widths = state.cells.shape[1], state.profile.shape[1]
        if widths != (monitor._tests.n_cells, profile_size(head.n_classes_)):
            raise ValueError(
                f"folder {os.fspath(folder)!r} holds a monitor whose counts do not fit its reference: it is damaged. "
                "Copy it again, or restore a backup."
            )
        return monitor

    def to_dict(self, *, rolling: int = 1) -> dict[str, Any]:
        """Everything as plain values: rows, what is outside now, ranked, what was measured, estimates, and `history`.

        `rolling` windows are taken together in the history and in the newest estimate.
        """
        state, rolling = self._state, check_integer(rolling, "rolling", low=1)
        newest = int(state.recent("profile", rolling)[0]) if state.keys.size else 0
        return {
            "rows": self.n_rows,
            "labelled": self.n_labelled,
            "doubted": self.n_doubted,
            "alpha": state.alpha,
            "window": state.window,
            "max_risk": state.max_risk,
            "reference_rows": state.reference.n_rows,
            "head": state.head,
            "windows": int(state.keys.size),
            "first": as_text(first_second(state.first, state.window)) if state.keys.size else None,
            "last": as_text(state.last) if state.keys.size else None,
            **overview(self, state, self._tests, rolling),
            "rolling": rolling,
            "alarms": [_plain(alarm) for alarm in state.alarms],
            "moved": {name: [_plain(alarm) for alarm in found] for name, found in self.moved().items()},
            "estimated_accuracy": self.estimated_accuracy().to_dict() if self.n_rows else None,
            "newest_accuracy": self.estimated_accuracy(last=rolling).to_dict() if newest else None,
            "words": state.words,
            "accepted": accepted_rows(state, self._place("risk"), rolling),
            "history": self.history(rolling=rolling),
        }

    def to_json(self, *, rolling: int = 1) -> str:
        """`to_dict` with this `rolling` as JSON."""
        return json.dumps(self.to_dict(rolling=rolling), indent=2, allow_nan=False)

    def to_html(self, path: str | os.PathLike[str], *, title: str = "Monitor", rolling: int = 1) -> None:
        """Write a self-contained page with a `title` to `path`: alarms, estimate, and `rolling` windows as charts."""
        from atypicality import write_monitor

        write_monitor(self.to_dict(rolling=rolling), path, title=title)

    def summary(self, *, rolling: int = 1) -> str:
        """Rows, what is outside now, and the accuracy as lines of text, of the newest `rolling` windows and of all."""
        return summarised(self, self._state, self._tests, check_integer(rolling, "rolling", low=1))

    def __repr__(self) -> str:
        return f"Monitor({self.n_rows} rows, {len(self._state.alarms)} alarms)"


def _plain(alarm: Alarm) -> dict[str, Any]:
    return asdict(alarm.told()) | {"at": as_text(alarm.at), "since": as_text(alarm.since), "text": str(alarm)}
