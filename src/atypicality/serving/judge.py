"""A loaded head that answers many small requests: what they share is computed once, and rows of several go together."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from atypicality.head.prediction import missing_formulas, predicted
from atypicality.head.reliability import Reliability
from atypicality.outputs import ModelOutputs
from atypicality.validation.refusals import is_refusal

__all__ = ["Judge"]

INPUTS = ("logits", "embeddings", "atypicality")


class Judge:
    """A fitted head, ready to answer; with `max_risk` every answer says whether the prediction is accepted.

    `inputs` are the widths of what the head needs, 0 for one number per row; `sample` is the answer to one row of zeros:
    which fields there are, and of which type.

    >>> from atypicality.datasets import load_fashion_mnist
    >>> from atypicality.head import ReliabilityHead
    >>> train, calibration, test = load_fashion_mnist()
    >>> judge = Judge(ReliabilityHead().fit(train=train, calibration=calibration), max_risk=0.05)
    >>> first, second = judge.answers([test[:1], test[1:3]])
    >>> len(first), len(second), judge.inputs
    (1, 2, {'logits': 10, 'embeddings': 48})
    """

    def __init__(self, head: Any, max_risk: float | None = None) -> None:
        if isinstance(getattr(head.recalibration_, "class_prior", None), str):
            raise ValueError(
                "a head that estimates its class mix from the rows cannot be served: an answer would depend on which "
                "rows came with it. Set class_prior to shares, or to None."
            )
        self.head, self._max_risk, self._served = head, max_risk, 0
        self._formula = None if missing_formulas(head) else head.formula(max_risk)
        self.inputs = {"logits": head.n_classes_}
        if head.density_ is not None:
            self.inputs["embeddings"] = head.density_.n_features_in_
        elif head.quantiles_ is not None:
            self.inputs["atypicality"] = 0
        zeros: dict[str, Any] = {
            name: np.zeros((1, width) if width else 1, np.float32) for name, width in self.inputs.items()
        }
        if "embeddings" in zeros:  # a row of zeros has no direction, which some densities need
            zeros["embeddings"][:] = 1
        self.sample = self._answer(ModelOutputs(**zeros))

    def answers(
        self, requests: Sequence[ModelOutputs], seen: Callable[[Reliability], None] = lambda answer: None
    ) -> list[Reliability | Exception]:
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

    def _together(
        self, requests: list[ModelOutputs], seen: Callable[[Reliability], None]
    ) -> list[Reliability | Exception]:
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
