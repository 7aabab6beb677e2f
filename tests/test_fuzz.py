"""Readers of bytes from elsewhere under the rule of fuzz/: the corpus and seeded mutations of it, without a fuzzer."""

import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from conftest import needs

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz import rule
from fuzz.pieces import join, mutated, split
from fuzz.rule import Finding, Target, run
from fuzz.targets import CORPUS, TARGETS, seeds

pytestmark = needs("httpx", "pyarrow")

MUTATIONS = 400
LARGEST = 16_000


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_keeps_the_rule(name):
    taken = {kept: run(TARGETS[name], data) for kept, data in seeds(name).items()}
    assert any(taken.values())
    assert name == "cache" or not all(taken.values())  # a cache passes over what it cannot read


@pytest.mark.parametrize("name", TARGETS)
def test_mutations_keep_the_rule(name, rng):
    known = list(seeds(name).values())
    for _ in range(MUTATIONS):
        data = mutated(known, rng)
        try:
            run(TARGETS[name], data)
        except Exception as error:
            error.add_note(f"{name} was given {data!r}")
            raise


def test_the_corpus_is_small_and_of_known_targets():
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)
    assert all(len(data) <= LARGEST for name in TARGETS for data in seeds(name).values())


@pytest.mark.parametrize(
    ("name", "kept", "message"),
    [
        ("npy", "bytes", "labels must be text; as bytes they are not UTF-8"),
        ("npy", "keys", "'logits' is not a NumPy array"),
        ("npy", "text", "'class_names' holds text that is not Unicode"),
        ("npy", "unclosed", "'logits' is not a NumPy array"),
        ("npy", "wrapped", "claims 147573952589676412928 bytes of data and holds 24"),  # 2**67, not its last 64 bits
        ("npz", "packed-text", "'class_names' holds text that is not Unicode"),
        ("safetensors", "packed-noise", "holds text that is not Unicode"),
        ("scores", "deep", "'scores.jsonl', record 1: .*recursion"),
        ("scores", "latin", "'scores.jsonl', record 1: .*utf-8"),
        ("scores", "parquet-cut", "'scores.parquet', record 1: "),
        ("scores", "words", "record 1: could not convert string to float: 'high'"),
        ("scores", "huge", "record 1: int too large"),
        ("scores", "nan", "label_log_probs must be numbers; that of 'good' is nan"),
        ("scores", "ends", r"ends must be whole numbers, one per log-probability; got shape \(\)"),
        ("server", "not-gzip", "answered with the Content-Encoding gzip, though the request accepts identity alone"),
        ("template", "latin", "'template.txt' is not UTF-8 at byte 0"),
        ("texts", "deep", "'texts.jsonl': .*recursion"),
        ("texts", "parquet-cut", "'texts.parquet': "),
    ],
)
def test_what_was_found_once_is_refused_in_words(tmp_path, name, kept, message):
    with pytest.raises((ValueError, OSError), match=message):
        raised(TARGETS[name].read(seeds(name)[kept], tmp_path))


def raised(result):
    """Raise an error that a target has judged itself."""
    if isinstance(result, Exception):
        raise result


def test_a_gap_in_a_parquet_column_of_labels_is_a_missing_label(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    from atypicality.llm import PrecomputedScorer

    rows = [{"prompt": word, "log_probs": [-1.0], "label_log_probs": {word: -0.5}} for word in ("a", "b")]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "scores.parquet")  # the other label of each becomes null
    with pytest.raises(ValueError, match="has no label_log_probs for 'b' after 'a'; it has: a"):
        PrecomputedScorer(tmp_path / "scores.parquet").score_labels(["a"], [" a", " b"])


def test_a_cache_passes_over_a_line_too_deep_to_read(tmp_path):
    cache = TARGETS["cache"].read(seeds("cache")["deep"], tmp_path)
    assert "k" in cache


def foreign_error(data, folder):
    return int("no number")


def foreign_type(data, folder):
    raise KeyError("ours or not")


def foreign_warning(data, folder):
    warnings.warn("deprecated", DeprecationWarning, stacklevel=2)


@pytest.mark.parametrize(
    ("read", "kind", "message"),
    [
        (foreign_error, Finding, "an error that is not ours: ValueError: invalid literal"),
        (foreign_type, KeyError, "ours or not"),
        (foreign_warning, Finding, "a warning that is not allowed: DeprecationWarning: deprecated"),
    ],
)
def test_the_rule_finds_what_is_not_ours(read, kind, message):
    with pytest.raises(kind, match=message):
        run(Target(read, lambda _: None), b"")


def test_the_rule_finds_wrong_results():
    def check(result):
        assert result == b"other"

    with pytest.raises(AssertionError):
        run(Target(lambda data, folder: data, check), b"")


def test_the_rule_finds_time_and_memory(monkeypatch):
    nothing = Target(lambda data, folder: None, lambda _: None)
    monkeypatch.setattr(rule, "SECONDS", -1.0)
    with pytest.raises(Finding, match=" s for 0 bytes"):
        run(nothing, b"")
    monkeypatch.setattr(rule, "SECONDS", np.inf)
    monkeypatch.setattr(rule, "MEGABYTES", -1)
    with pytest.raises(Finding, match=" MB for 0 bytes"):
        run(nothing, b"")


def test_parts_come_back_and_any_bytes_have_parts(rng):
    parts = [rng.bytes(size) for size in (0, 1, 300)]
    assert split(join(*parts), 3) == parts
    assert split(b"\xff" * 6, 3) == [b"\xff\xff", b"", b""]
