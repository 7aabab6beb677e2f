"""An answer head in the HTTP service: records of answers in, P(correct) and what to do out."""

from collections.abc import Callable, Sequence
from typing import Any, Self

from atypicality.head.reliability import Reliability
from atypicality.llm.answer_head import AnswerHead
from atypicality.llm.answers import Answers
from atypicality.outputs.paths import AnyPath
from atypicality.serving.requests import read_records
from atypicality.validation import caught_warnings
from atypicality.validation.refusals import is_refusal

__all__ = ["AnswerJudge"]


class AnswerJudge:
    """A fitted answer head, ready to answer as `atypicality.serving.store.Judge` does.

    A request is a list of records, like lines of a file of answers in the names of the fit.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> texts, score = ["..."] * 500, rng.random(500)
    >>> head = AnswerHead().fit(Answers(texts, texts, scores={"judge": score}), rng.random(500) < score)
    >>> [said] = AnswerJudge(head, max_risk=0.2).answers([[{"scores": {"judge": 0.99}}, {"scores": {"judge": 0.1}}]])
    >>> said.accepted.tolist()
    [True, False]
    """

    read = staticmethod(read_records)

    def __init__(self, head: AnswerHead, max_risk: float | None = None) -> None:
        self.head, self._max_risk = head, max_risk
        self.inputs: dict[str, int] = {}  # no tensors: records are texts and numbers by name
        self.sample = self._answer([{"prompt": "", "answer": ""}])

    @classmethod
    def load(cls, folder: AnyPath, sha256: str, max_risk: float | None = None) -> Self:
        """The saved head with this hash."""
        return cls(AnswerHead.load(folder, sha256=sha256), max_risk)

    def answers(
        self, requests: Sequence[Any], seen: Callable[[Reliability], None] = lambda answer: None
    ) -> list[Reliability | Exception]:
        """The answer to each request, or the error that refuses it; `seen` is called with each answer."""
        return [self._answered(request, seen) for request in requests]

    def _answered(self, request: Any, seen: Callable[[Reliability], None]) -> Reliability | Exception:
        if not isinstance(request, list):
            return ValueError("this head judges answers of a language model: POST records to /predict.")
        try:
            found = self._answer(request)
        except Exception as error:
            if not is_refusal(error):
                raise
            return error
        seen(found)
        return found

    def _answer(self, records: list[dict[str, Any]]) -> Reliability:
        with caught_warnings():  # of fields that are not read, or missing: those answers are not accepted
            return self.head.predict(Answers.from_records(records, names=self.head.names_), max_risk=self._max_risk)
