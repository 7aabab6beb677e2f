"""Files of model outputs, each read plainly and under a ceiling of memory, which must come to the same."""

import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from atypicality import ModelOutputs, blocks
from fuzz.pieces import split
from fuzz.rule import Target, attempt

__all__ = ["NAMES", "TARGETS"]

NAMES = ("logits", "embeddings", "labels", "class_names", "attribute_site")
"""Arrays whose .npy files are the parts of an input of `npy` and `npz`; an empty part is left out."""
LIMIT = 16_000_000
SMALL_SHARE = 1_000_000
"""So that arrays of more than 128 bytes go to scratch files under the smallest ceiling."""


def read_npy(data: bytes, folder: Path) -> ModelOutputs | Exception:
    """A folder of .npy files."""
    path = folder / "outputs"
    path.mkdir()
    for name, part in _members(data):
        (path / f"{name}.npy").write_bytes(part)
    return _read_both_ways(path)


def read_npz(data: bytes, folder: Path) -> ModelOutputs | Exception:
    """An archive as it is, or after a zero byte one whose checksums are right whatever its members are."""
    if data[:1] == b"\0":
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as file:
            for name, part in _members(data[1:]):
                file.writestr(f"{name}.npy", part)
        data = archive.getvalue()
    return _read_file(data, folder / "outputs.npz")


def read_safetensors(data: bytes, folder: Path) -> ModelOutputs | Exception:
    """A file as it is, or after a zero byte a header, whose length is then right, and the numbers."""
    if data[:1] == b"\0":
        header, numbers = split(data[1:], 2)
        data = len(header).to_bytes(8, "little") + header + numbers
    return _read_file(data, folder / "outputs.safetensors")


def read_parquet(data: bytes, folder: Path) -> ModelOutputs | Exception:
    """A file as it is."""
    return _read_file(data, folder / "outputs.parquet")


def read_csv(data: bytes, folder: Path) -> ModelOutputs | Exception:
    """A table as it is."""
    return _read_file(data, folder / "outputs.csv")


def check(outputs: ModelOutputs) -> None:
    """Lengths that agree, labels that are columns, and parts that can be shown and cut."""
    assert repr(outputs)
    assert len(outputs[:1]) == min(1, len(outputs))
    for name in ("logits", "embeddings", "labels", "atypicality", "ids"):
        array = getattr(outputs, name)
        assert array is None or len(array) == len(outputs)
    if outputs.labels is not None and outputs.n_classes is not None and len(outputs):
        assert 0 <= outputs.labels.min() <= outputs.labels.max() < outputs.n_classes
    for array in (outputs.class_names, outputs.ids, *outputs.attributes.values()):
        assert array is None or len(array.tolist()) == len(array)


def _members(data: bytes) -> Iterator[tuple[str, bytes]]:
    return ((name, part) for name, part in zip(NAMES, split(data, len(NAMES)), strict=True) if part)


def _read_file(data: bytes, path: Path) -> ModelOutputs | Exception:
    path.write_bytes(data)
    return _read_both_ways(path)


def _read_both_ways(path: Path) -> ModelOutputs | Exception:
    """The outputs, or the error of ours that refuses them."""
    plain: ModelOutputs | Exception = attempt(_load, path)
    with _small_ceiling():
        streamed = attempt(_load, path)
    if isinstance(plain, Exception):
        assert isinstance(streamed, Exception), f"taken only under a ceiling of memory; without: {plain}"
        return plain
    assert not isinstance(streamed, Exception), f"refused only under a ceiling of memory: {streamed}"
    assert plain.fingerprint() == streamed.fingerprint()
    return plain


def _load(path: Path) -> ModelOutputs:
    return ModelOutputs.load(path, max_bytes=LIMIT)


@contextmanager
def _small_ceiling() -> Iterator[None]:
    share = blocks.LARGE_SHARE
    blocks.LARGE_SHARE = SMALL_SHARE
    try:
        with blocks.settings(memory="128MB"):
            yield
    finally:
        blocks.LARGE_SHARE = share


TARGETS = {
    "npy": Target(read_npy, check),
    "npz": Target(read_npz, check),
    "safetensors": Target(read_safetensors, check),
    "parquet": Target(read_parquet, check),
    "csv": Target(read_csv, check),
}
