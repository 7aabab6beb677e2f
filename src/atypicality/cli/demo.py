"""`atypicality demo`."""

__all__ = ["command"]


def command() -> None:
    """The whole pipeline on a small real model."""
