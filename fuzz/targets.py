"""Every reader under test by name, and the inputs that are kept for it."""

from pathlib import Path

from fuzz import bundle, outputs, service, texts
from fuzz.rule import Target

__all__ = ["CORPUS", "TARGETS", "seeds"]

CORPUS = Path(__file__).with_name("corpus")
TARGETS: dict[str, Target] = bundle.TARGETS | outputs.TARGETS | service.TARGETS | texts.TARGETS


def seeds(name: str) -> dict[str, bytes]:
    """Inputs of a target by file name."""
    return {path.name: path.read_bytes() for path in sorted((CORPUS / name).iterdir())}
