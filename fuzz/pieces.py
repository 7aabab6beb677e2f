"""Several files in one input, and seeded mutations of inputs."""

from collections.abc import Sequence

import numpy as np

__all__ = ["join", "mutated", "split"]

TOKENS = (
    b"null", b"true", b"NaN", b"-Infinity", b"1e999", b"-1", b"0.5", b"9" * 5000, b"[]", b"{}", b'""', b"[" * 3000,
    b'"\\ud800"', b"\\u0000", b"\0" * 8, b"\xff" * 4, b"\xff" * 8, b"\xef\xbb\xbf", b"\n", b",", b":", b"{input}",
    b"(4294967296, 4294967296)", b"(-1,)", b"()", b"'|O'", b"'<U4'", b"'>f4'", b"'<c16'", b"'<M8[ns]'", b"'|S3'",
    b"True", b"U32", b"BF16", b"[9223372036854775807,2]", (2**31).to_bytes(4, "little"), (2**62).to_bytes(8, "little"),
)  # fmt: skip


def join(*parts: bytes) -> bytes:
    """Parts behind each other, each after its length in four bytes."""
    return b"".join(len(part).to_bytes(4, "little") + part for part in parts)


def split(data: bytes, count: int) -> list[bytes]:
    """So many parts from any bytes; a length that is too great takes what there is.

    >>> split(join(b"ab", b"", b"c"), 3)
    [b'ab', b'', b'c']
    """
    parts = []
    for _ in range(count):
        size = int.from_bytes(data[:4], "little")
        parts.append(data[4 : 4 + size])
        data = data[4 + size :]
    return parts


def mutated(seeds: Sequence[bytes], rng: np.random.Generator) -> bytes:
    """One of the seeds after one to four random edits."""
    data = seeds[int(rng.integers(len(seeds)))]
    for _ in range(rng.integers(1, 5)):
        start = int(rng.integers(len(data) + 1))
        stop = min(len(data), start + int(rng.integers(1, 1 + rng.choice([1, 4, 16, 256]))))
        data = data[:start] + _instead(data[start:stop], seeds, rng) + data[stop:]
    return data


def _instead(piece: bytes, seeds: Sequence[bytes], rng: np.random.Generator) -> bytes:
    """What comes in the place of a piece: nothing, itself twice, noise, a flipped bit, a token, a piece of a seed."""
    kind = rng.integers(6)
    if kind == 0:
        return b""
    if kind == 1:
        return piece * 2
    if kind == 2:
        return rng.bytes(len(piece))
    if kind == 3:
        return piece and bytes([piece[0] ^ 1 << int(rng.integers(8))]) + piece[1:]
    if kind == 4:
        return TOKENS[rng.integers(len(TOKENS))]
    other = seeds[int(rng.integers(len(seeds)))]
    start = int(rng.integers(len(other) + 1))
    return other[start : start + len(piece)]
