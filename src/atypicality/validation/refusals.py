"""Errors that a check of ours raised, told from those of a bug."""

import dis

__all__ = ["is_refusal"]


def is_refusal(error: BaseException) -> bool:
    """Whether a `raise` of this package made it, as a check does: any other failure, also in our code, is a bug.

    >>> from atypicality.validation import check_alpha
    >>> def caught(function):
    ...     try:
    ...         function()
    ...     except (ValueError, TypeError) as error:
    ...         return is_refusal(error)
    >>> caught(lambda: check_alpha(10)), caught(lambda: int("ten"))
    (True, False)
    """
    if not isinstance(error, (ValueError, TypeError)):
        return False
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or str(last.tb_frame.f_globals.get("__name__")).partition(".")[0] != "atypicality":
        return False
    return last.tb_frame.f_code.co_code[last.tb_lasti] == dis.opmap["RAISE_VARARGS"]
