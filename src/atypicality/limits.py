"""What a file may ask for: the limit on what it unpacks to, and the error for one that is not what it claims."""

from pathlib import Path

from atypicality import blocks

__all__ = ["DEFAULT_LIMIT", "UnreadableFileError", "default_limit", "refuse_size"]

DEFAULT_LIMIT = 16 * 2**30
"""Most bytes that an archive, a safetensors or a Parquet file may unpack to, unless the caller says otherwise."""
HONEST_RATIO = 4
"""Times its own size that a large file may unpack to where it goes to the disk: a bomb is small."""


class UnreadableFileError(ValueError):
    """A file that is damaged, hostile or not what its ending says."""


def default_limit(path: Path) -> int:
    """The limit for a file: under a ceiling of memory its arrays go to the disk, and a large file may be large."""
    if blocks.ceiling() is None:
        return DEFAULT_LIMIT
    files = path.rglob("*") if path.is_dir() else [path]
    return max(DEFAULT_LIMIT, HONEST_RATIO * sum(file.stat().st_size for file in files))


def refuse_size(size: int, left: int, path: Path, name: str, max_bytes: int) -> None:
    """Refuse an array of `size` bytes where `left` of the limit are left."""
    if size > left:
        raise UnreadableFileError(
            f"{path.name!r}: array {name!r} needs {size} bytes, and the limit for the file is {max_bytes} bytes. "
            "Raise max_bytes if you trust the file, or store it as a folder of .npy files, which is read in pieces."
        )
