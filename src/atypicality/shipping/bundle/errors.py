"""The one error that a bundle can give."""

__all__ = ["BundleError"]

_LONGEST = 600  # what a hostile file makes a message quote must not fill a log


class BundleError(ValueError):
    """A bundle that is damaged, hostile or from a newer format: the message says which file, which rule, what to do.

    Parameters
    ----------
    message : str
        Shortened where a hostile file would fill a log with it.

    Examples
    --------
    >>> import tempfile
    >>> from atypicality.shipping.bundle import load
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     try:
    ...         load(folder)
    ...     except BundleError as error:
    ...         print("refused")
    refused
    """

    def __init__(self, message: str) -> None:
        super().__init__(message if len(message) <= _LONGEST else message[:_LONGEST] + " ...")
