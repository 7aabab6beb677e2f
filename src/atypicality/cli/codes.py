"""Exit codes of commands that have run to their end: which of them a scheduler should stop at.

0 is done, 1 a defect of the package, 2 a mistake of the user, 130 an interruption. Where several of these codes apply,
the first of them here is given.
"""

__all__ = ["LOOKS_WRONG", "NEWS", "STILL"]

LOOKS_WRONG = 4
"""The files do not look like outputs of the model that was fitted: answers to them are not to be used."""
NEWS = 3
"""Something to look at came up in this call: rows have drifted, an alarm was raised, a new head is not better."""
STILL = 5
"""Nothing new: an alarm of an earlier call is not over."""
