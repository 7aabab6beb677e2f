"""scikit-learn's conventions for estimators without the second that importing scikit-learn takes.

Loading a head, fitting one and answering need none of it; clones of what is not ours, and the error of an estimator
that is not fitted, are scikit-learn's own.
"""

import copy
import inspect
from typing import Any, Self, TypeVar

__all__ = ["BaseEstimator", "check_is_fitted", "clone"]

T = TypeVar("T")


class BaseEstimator:
    """An estimator whose parameters are those of its constructor; scikit-learn takes it for one of its own."""

    @classmethod
    def _get_param_names(cls) -> list[str]:
        if cls.__init__ is object.__init__:
            return []
        return sorted(name for name in inspect.signature(cls.__init__).parameters if name != "self")

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters by name; with `deep` also those of parameters that are estimators, as `name__parameter`.

        >>> from atypicality.groups import QuantileGroups
        >>> QuantileGroups(3).get_params()
        {'n_groups': 3}
        """
        found: dict[str, Any] = {}
        for name in self._get_param_names():
            value = found[name] = getattr(self, name)
            if deep and hasattr(value, "get_params") and not isinstance(value, type):
                found |= {f"{name}__{key}": inner for key, inner in value.get_params().items()}
        return found

    def set_params(self, **params: Any) -> Self:
        """Set `params`, by the names of `get_params`.

        >>> from atypicality.groups import QuantileGroups
        >>> QuantileGroups(3).set_params(n_groups=4)
        QuantileGroups(n_groups=4)
        """
        for name, value in params.items():
            own, inner, rest = name.partition("__")
            if own not in self._get_param_names():
                known = ", ".join(self._get_param_names())
                raise ValueError(f"{type(self).__name__} has no parameter {own!r}; it has: {known}.")
            if inner:
                getattr(self, own).set_params(**{rest: value})
            else:
                setattr(self, own, value)
        return self

    def __repr__(self) -> str:
        """The parameters that differ from their defaults."""
        parameters = inspect.signature(type(self).__init__).parameters
        shown = {name: repr(value) for name, value in self.get_params(deep=False).items()}
        changed = (f"{name}={text}" for name, text in shown.items() if text != repr(parameters[name].default))
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_tags__(self) -> Any:
        from sklearn.base import BaseEstimator as Theirs

        return Theirs.__sklearn_tags__(self)


def clone(estimator: T, *, safe: bool = True) -> T:
    """A new estimator with the same parameters, not fitted; what is none is an error, or copied if not `safe`.

    >>> from atypicality.groups import QuantileGroups
    >>> clone(QuantileGroups(3).fit([1.0, 2.0, 3.0]))
    QuantileGroups(n_groups=3)
    """
    if safe and isinstance(estimator, str):
        raise TypeError(
            f"an estimator must be given as an object, such as TemperatureScaling(); got the text {estimator!r}."
        )
    if isinstance(estimator, BaseEstimator) and not hasattr(estimator, "__sklearn_clone__"):
        return _clone_of_ours(estimator)  # type: ignore[no-any-return]
    if isinstance(estimator, (list, tuple, set, frozenset)):
        return type(estimator)([clone(one, safe=safe) for one in estimator])
    if not safe and not hasattr(estimator, "get_params") and not hasattr(estimator, "__sklearn_clone__"):
        return copy.deepcopy(estimator)
    from sklearn.base import clone as theirs

    if safe and not hasattr(estimator, "get_params"):
        raise TypeError(
            f"{type(estimator).__name__} must have get_params, by which a new copy of it is made and fitted. Inherit "
            "from sklearn.base.BaseEstimator."
        )
    return theirs(estimator, safe=safe)  # type: ignore[no-any-return]


def _clone_of_ours(estimator: Any) -> Any:
    given = {name: clone(value, safe=False) for name, value in estimator.get_params(deep=False).items()}
    made = type(estimator)(**given)
    for name, value in given.items():
        if getattr(made, name) is not value:
            raise RuntimeError(f"{type(estimator).__name__} must keep its parameter {name!r} as it is given.")
    return made


def check_is_fitted(estimator: Any, attribute: str | None = None) -> None:
    """Raise `sklearn.exceptions.NotFittedError` unless the estimator has this attribute, or any of a fitted one."""
    learnt = (name for name in getattr(estimator, "__dict__", ()) if name.endswith("_") and not name.startswith("__"))
    fitted = hasattr(estimator, attribute) if attribute else any(learnt)
    if isinstance(estimator, type) or not fitted:
        from sklearn.utils.validation import check_is_fitted as theirs

        theirs(estimator, attribute)
