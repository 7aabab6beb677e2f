"""The head that is served: loaded from its folder, replaced as a whole by a new bundle, and asked many small questions.

What requests share is computed once, and rows of several go together.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from atypicality.head.prediction import input_widths, missing_formulas, predicted
from atypicality.head.reliability import Reliability
from atypicality.outputs import ModelOutputs
from atypicality.outputs.paths import AnyPath
from atypicality.serving.requests import read_rows
from atypicality.shipping.bundle import BundleError, load, saved_class, saved_sha256
from atypicality.shipping.bundle.document import NAME
from atypicality.validation.refusals import is_refusal

__all__ = ["HeadStore", "Judge", "Served"]

Answered = list[Reliability | Exception]
ANSWERS = "AnswerHead"  # the class of saved heads that records of answers are for
INPUTS = ("logits", "embeddings", "atypicality")
ATTEMPTS = 10
VERSION_LENGTH = 12


class Judge:
    """A fitted head, ready to answer; with `max_risk` every answer says whether the prediction is accepted.

    `inputs` are the widths of what the head needs, 0 for one number per row; `sample`, the answer to one row of zeros,
    shows which fields there are, and of which type.
    """

    def __init__(self, head: Any, max_risk: float | None = None) -> None:
        if isinstance(getattr(head.recalibration_, "class_prior", None), str):
            raise ValueError(
                "a head that estimates its class mix from the rows cannot be served: an answer would depend on which "
                "rows came with it. Set class_prior to shares, or to None."
            )
        self.head, self._max_risk, self._served = head, max_risk, 0
        self._formula = None if missing_formulas(head) else head.formula(max_risk)
        self.inputs = input_widths(head)
        zeros: dict[str, Any] = {
            name: np.zeros((1, width) if width else 1, np.float32) for name, width in self.inputs.items()
        }
        if "embeddings" in zeros:  # a row of zeros has no direction, which some densities need
            zeros["embeddings"][:] = 1
        self.sample = self._answer(ModelOutputs(**zeros))

    read = staticmethod(read_rows)

    def answers(self, requests: Sequence[Any], seen: Callable[[Reliability], None] = lambda answer: None) -> Answered:
        """The answer to each request, or the error that refuses it, which no other request notices.

        `seen` is called with what was answered, rows of several requests together.
        """
        groups: dict[Any, list[int]] = {}
        for place, outputs in enumerate(requests):
            groups.setdefault(_kind(outputs), []).append(place)
        found: dict[int, Reliability | Exception] = {}
        for places in groups.values():
            found |= zip(places, self._together([requests[place] for place in places], seen), strict=True)
        return [found[place] for place in range(len(requests))]

    def _together(self, requests: list[ModelOutputs], seen: Callable[[Reliability], None]) -> Answered:
        try:
            whole = self._answer(requests[0] if len(requests) == 1 else _joined(requests))
        except Exception as error:
            if len(requests) == 1:
                return [error]
            if not is_refusal(error):
                raise
            return [self._together([outputs], seen)[0] for outputs in requests]
        seen(whole)
        ends = np.cumsum([len(outputs) for outputs in requests]).tolist()
        return [whole[end - len(outputs) : end] for outputs, end in zip(requests, ends, strict=True)]

    def _answer(self, outputs: ModelOutputs) -> Reliability:
        found = predicted(self.head, outputs, self._served, max_risk=self._max_risk, formula=self._formula)
        self._served += len(outputs)  # so that randomised sets have new draws
        return self.head._reliability(found, outputs)  # type: ignore[no-any-return]


def _kind(outputs: ModelOutputs) -> Any:
    """Equal for requests whose rows can be answered as one array without a change of types or order."""
    arrays = [getattr(outputs, name) for name in INPUTS]
    names = None if outputs.class_names is None else tuple(outputs.class_names.tolist())
    return names, *(None if array is None else (array.dtype, array.shape[1:]) for array in arrays)


def _joined(requests: list[ModelOutputs]) -> ModelOutputs:
    arrays = {name: [getattr(outputs, name) for outputs in requests] for name in INPUTS}
    together: dict[str, Any] = {
        name: None if parts[0] is None else np.concatenate(parts) for name, parts in arrays.items()
    }
    return requests[0]._replaced(**together, ids=None)


class Served(NamedTuple):
    """A head that answers, and its version: the first digits of the sha256 that `save` gave."""

    judge: Any  # a `Judge`, or one of answers with the same methods
    version: str


class HeadStore:
    """The folder of a bundle and the head that was last loaded from it.

    With `sha256` every other head is refused, as in `load`; a reload then changes nothing. `current` is replaced in one
    step; whoever took it before keeps what it took.
    """

    def __init__(self, folder: AnyPath, *, max_risk: float | None = None, sha256: str | None = None) -> None:
        self.folder, self._max_risk, self._sha256 = Path(folder), max_risk, sha256
        self._seen = self._stamp()
        self.current = self.load()

    def load(self) -> Served:
        """The head that is in the folder now, ready to answer; `current` stays as it is."""
        for attempt in range(ATTEMPTS):
            seal = saved_sha256(self.folder)
            try:
                judge = self._judge(self._sha256 or seal)
            except BundleError:  # perhaps a writer put another bundle there between two looks
                if self._sha256 is not None or attempt + 1 == ATTEMPTS or saved_sha256(self.folder) == seal:
                    raise
                continue
            return Served(judge, seal[:VERSION_LENGTH])
        raise AssertionError("the last attempt raises")

    def _judge(self, sha256: str) -> Any:
        """What answers with the head of that hash; that of answers is found by its name, as its room comes later."""
        if saved_class(self.folder) != ANSWERS:
            return Judge(load(self.folder, sha256=sha256), self._max_risk)
        from atypicality import AnswerJudge

        return AnswerJudge.load(self.folder, sha256, self._max_risk)

    def changed(self) -> bool:
        """Whether the folder's bundle was replaced since the last call, or since the start."""
        before, self._seen = self._seen, self._stamp()
        return self._seen not in (before, None)

    @property
    def missing(self) -> bool:
        """Whether there was no bundle at the last look."""
        return self._seen is None

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self.folder / NAME)
        except OSError:  # between the steps of somebody's copying
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size
