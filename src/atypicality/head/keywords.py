"""Calls that offer keywords to functions of users, which need not take all of them."""

import inspect
from collections.abc import Callable
from typing import Any

__all__ = ["call_with_known"]


def call_with_known(function: Callable[..., Any], *args: Any, **offered: Any) -> Any:
    """Call with those of the offered keywords that the function takes.

    >>> call_with_known(sorted, [2, 1, 3], reverse=True, seed=7)
    [3, 2, 1]
    """
    parameters = inspect.signature(function).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        offered = {name: value for name, value in offered.items() if name in parameters}
    return function(*args, **offered)
