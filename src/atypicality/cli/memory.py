"""What commands on large files share: a memory limit, a scratch folder, and a bar while they work."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["Memory", "Scratch", "large_work"]

Memory = Annotated[
    str | None,
    typer.Option(help="Memory limit, such as 1GB: larger arrays are spilled to disk while they are worked on."),
]
Scratch = Annotated[
    Path | None, typer.Option(help="Folder for those files; by default the system's for temporary files.")
]


@contextlib.contextmanager
def large_work(description: str, memory: str | None, scratch: Path | None) -> Iterator[None]:
    """Work under a memory limit, where one is given, with a bar for every long pass over rows on a terminal."""
    from atypicality import blocks
    from atypicality.blocks.progress import working

    with blocks.settings(memory=memory, scratch=scratch), working(description):
        yield
