"""ModelOutputs: parts that belong together, splits that are reproducible, files that come back as they were."""

import io
import sys
import zipfile

import numpy as np
import pytest
from conftest import needs
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from atypicality import ModelOutputs, three_way_split
from atypicality.outputs.files import read_arrays, write_arrays

FORMATS = ["out.npz", "out.safetensors", "folder", pytest.param("out.parquet", marks=needs("pyarrow"))]
PARTS = ("logits", "embeddings", "labels", "atypicality", "class_atypicality", "class_names", "ids")


@pytest.fixture
def outputs(rng):
    return ModelOutputs(
        rng.normal(size=(7, 3)).astype("f4"),
        embeddings=rng.normal(size=(7, 4)).astype("f2"),
        labels=["b", "a", "c", "c", "b", "a", "a"],
        atypicality=rng.random(7),
        class_atypicality=[0.5, 1.5, np.inf],
        attributes={"tone": list("xyxyxyx"), "site": np.arange(7)},
        class_names=["a", "b", "c"],
        ids=[f"säm {i}" for i in range(7)],
    )


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_returns_what_was_saved(outputs, name, tmp_path):
    outputs.save(tmp_path / name)
    loaded = ModelOutputs.load(tmp_path / name)
    for part in PARTS:
        assert_array_equal(getattr(loaded, part), getattr(outputs, part))
        assert getattr(loaded, part).dtype == getattr(outputs, part).dtype
    for attribute, values in outputs.attributes.items():
        assert_array_equal(loaded.attributes[attribute], values)
    assert loaded.fingerprint() == outputs.fingerprint()


@pytest.mark.parametrize("name", FORMATS)
def test_training_outputs_need_no_logits(name, tmp_path):
    ModelOutputs(embeddings=np.eye(3), labels=[0, 1, 0]).save(tmp_path / name)
    loaded = ModelOutputs.load(tmp_path / name)
    assert loaded.logits is None
    assert_array_equal(loaded.embeddings, np.eye(3))


def test_a_folder_is_mapped_and_not_read(outputs, tmp_path):
    outputs.save(tmp_path / "folder")
    loaded = ModelOutputs.load(tmp_path / "folder")
    assert isinstance(loaded.logits, np.memmap)
    assert isinstance(loaded.embeddings, np.memmap)
    assert isinstance(loaded[2:5].embeddings, np.memmap)  # a slice of a map is still a map


def test_a_folder_with_contents_is_never_overwritten(outputs, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(FileExistsError, match="not empty"):
        outputs.save(tmp_path / "mine")
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep"


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "out.npz"
    ModelOutputs([[1.0, 2.0]]).save(path)
    monkeypatch.setattr(np, "savez_compressed", lambda *a, **k: (_ for _ in ()).throw(OSError(28, "disk full")))
    with pytest.raises(OSError, match="disk full"):
        ModelOutputs([[9.0, 9.0]]).save(path)
    assert_array_equal(ModelOutputs.load(path).logits, [[1.0, 2.0]])
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.npz"]


# splitting


@given(st.integers(2, 60), st.floats(0.05, 0.95), st.integers(0, 5))
def test_split_is_a_partition(n_rows, fraction, seed):
    outputs = ModelOutputs(np.arange(2.0 * n_rows).reshape(n_rows, 2))
    if round(fraction * n_rows) in (0, n_rows):
        with pytest.raises(ValueError, match="fraction must leave rows on both sides"):
            outputs.split(fraction, seed)
        return
    first, second = outputs.split(fraction, seed)
    assert len(first) == round(fraction * n_rows)
    assert_array_equal(np.sort(np.r_[first.logits, second.logits], axis=0), outputs.logits)
    again, _ = outputs.split(fraction, seed)
    assert_array_equal(again.logits, first.logits)


def test_another_seed_gives_another_split():
    outputs = ModelOutputs(np.arange(200.0).reshape(100, 2))
    assert not np.array_equal(outputs.split(0.5, 0)[0].logits, outputs.split(0.5, 1)[0].logits)


def test_stratified_split_keeps_shares_and_is_marked(rng):
    labels = np.repeat([0, 1, 2], [600, 90, 10])
    outputs = ModelOutputs(np.zeros((700, 3)), labels=rng.permutation(labels))
    first, second = outputs.split(0.3, stratify=True)
    assert np.abs(np.bincount(first.labels) - 0.3 * np.array([600, 90, 10])).max() <= 1  # cut to within one row
    assert first.stratified
    assert second.stratified
    with pytest.raises(ValueError, match="stratified split and cannot carry a guarantee"):
        three_way_split(first)


def test_plain_split_includes_each_row_with_the_same_probability():
    # 400 seeds, a share of .3: each row's count is binomial with sd sqrt(400 * .21) = 9.2; 5 sd on 50 rows is safe
    outputs = ModelOutputs(np.arange(100.0).reshape(50, 2))
    hits = np.zeros(50)
    for seed in range(400):
        hits[outputs.split(0.3, seed)[0].logits[:, 0].astype(int) // 2] += 1
    assert np.abs(hits - 120).max() < 5 * np.sqrt(400 * 0.3 * 0.7)


def test_three_parts_are_disjoint_and_complete():
    parts = three_way_split(ModelOutputs(np.arange(1200.0).reshape(600, 2)))
    assert [len(part) for part in parts] == [300, 100, 200]
    assert np.unique(np.concatenate([part.logits[:, 0] for part in parts])).size == 600


# what belongs together


def test_binary_logit_becomes_two_columns():
    assert_array_equal(ModelOutputs([[1.5], [-2.0]]).logits, [[0.0, 1.5], [0.0, -2.0]])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (dict(), ValueError, "needs at least one of"),
        (dict(logits=[[1.0, 2.0]], labels=[0, 1]), ValueError, "labels must have one entry per row; got 2 where"),
        (dict(logits=[[1.0, 2.0]], labels=[2]), ValueError, r"labels must lie in 0 \.\. 1.*row 0 is 2"),
        (dict(logits=[[1.0, 2.0]], labels=["a"]), TypeError, "need class_names, in the order of the columns"),
        (dict(logits=[[1.0, 2.0]], labels=["z"], class_names=["a", "b"]), ValueError, "must be among class_names.*'z'"),
        (dict(logits=[[1.0, 2.0]], class_names=["a", "a"]), ValueError, "class_names must be distinct; 'a'"),
        (dict(labels=["a"], class_names=[]), ValueError, "class_names must name at least one class"),
        (dict(logits=[[1.0, 2.0]], class_names=["a"]), ValueError, "got 1 class names for 2 columns of logits.$"),
        (
            dict(logits=[[1.0, 2.0]], embeddings=[[1.0, 2.0, 3.0]], class_names=["a", "b", "c"]),
            ValueError,
            "got 3 class names for 2 columns of logits. The embeddings have 3 columns: are logits and embeddings swap",
        ),
        (dict(logits=[[1.0, 2.0]], class_atypicality=[0.0] * 3), ValueError, "got 3 values for 2 columns of logits"),
        (dict(logits=[1.0, 2.0]), ValueError, "logits must be two-dimensional"),
        (dict(logits=[[1.0, 2.0]], labels=[[1, 0]]), ValueError, "Multi-label targets are not supported"),
        (dict(logits=[[1.0, 2.0]], atypicality=[np.nan]), ValueError, "atypicality must be finite; row 0 holds NaN"),
        (
            dict(logits=[[1.0, 2.0]], attributes={"age": [1, 2]}),
            ValueError,
            "attribute.age must have one entry per row",
        ),
        (dict(logits=np.array([[None, 1]])), TypeError, "logits must hold real numbers; got dtype object"),
        (dict(logits=np.ones((2, 2)) * 1j), TypeError, "logits must hold real numbers; got dtype complex"),
    ],
)
def test_bad_parts_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        ModelOutputs(**arguments)


def test_missing_part_says_what_is_there():
    with pytest.raises(ValueError, match="must have labels; they have only logits"):
        ModelOutputs([[1.0, 2.0]]).need("logits", "labels")


# files that lie


def npy_bytes(shape, *, dtype="<f8", data=b""):
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})
    return stream.getvalue() + data


def test_an_archive_that_claims_terabytes_is_refused_before_memory_is_taken(tmp_path):
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("logits.npy", npy_bytes((2**40, 2)))
    with pytest.raises(ValueError, match=r"'logits' needs 17592186044416 bytes, and the limit .* Raise max_bytes"):
        ModelOutputs.load(path)


def test_an_archive_that_unpacks_past_the_limit_is_refused(tmp_path):
    path = tmp_path / "zeros.npz"
    np.savez_compressed(path, logits=np.zeros((100_000, 10)))  # 8 MB that pack to a few kB
    assert path.stat().st_size < 50_000
    with pytest.raises(ValueError, match="the limit for the file is 1000000 bytes"):
        ModelOutputs.load(path, max_bytes=1_000_000)
    assert len(ModelOutputs.load(path, max_bytes=8_000_000)) == 100_000


def test_an_array_cut_short_is_named(tmp_path):
    path = tmp_path / "short.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("logits.npy", npy_bytes((3, 2), data=b"\0" * 40))
    with pytest.raises(ValueError, match="'logits' claims 48 bytes and holds 40"):
        ModelOutputs.load(path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "logits.npy").write_bytes(npy_bytes((3, 2), data=b"\0" * 40))
    with pytest.raises(ValueError, match="claims 48 bytes of data and holds 40"):
        ModelOutputs.load(tmp_path / "folder")


def test_pickles_are_refused(tmp_path):
    objects = np.array([{"a": 1}], dtype=object)
    np.savez(tmp_path / "pickle.npz", logits=objects)
    (tmp_path / "folder").mkdir()
    np.save(tmp_path / "folder" / "logits.npy", objects)
    for path in (tmp_path / "pickle.npz", tmp_path / "folder"):
        with pytest.raises(ValueError, match="holds Python objects, which need pickle"):
            ModelOutputs.load(path)
    with pytest.raises(ValueError, match="holds Python objects"):
        write_arrays(tmp_path / "out.npz", {"logits": objects})


@pytest.mark.parametrize("name", ["bad.npz", "bad.safetensors", pytest.param("bad.parquet", marks=needs("pyarrow"))])
def test_rubbish_is_refused_in_one_way(name, tmp_path):
    (tmp_path / name).write_bytes(b"PK\x03\x04 not what it says" * 9)
    with pytest.raises(ValueError, match=f"'{name}' is not a readable"):
        ModelOutputs.load(tmp_path / name)


@pytest.mark.parametrize("name", [entry for entry in FORMATS if entry != "folder"])
def test_damaged_files_never_crash(outputs, name, tmp_path, rng):
    path = tmp_path / name
    outputs.save(path)
    whole = path.read_bytes()
    for _ in range(300):
        data = bytearray(whole)
        for position in rng.integers(0, len(data), rng.integers(1, 4)):
            data[position] ^= 1 << rng.integers(8)
        path.write_bytes(data[: rng.integers(1, len(data))] if rng.random() < 0.3 else data)
        try:
            read_arrays(path, max_bytes=10**7)
        except (ValueError, MemoryError) as error:  # a damaged length may ask for more than there is
            assert name in str(error) or isinstance(error, MemoryError)


def test_misnamed_array_is_explained(tmp_path):
    np.savez(tmp_path / "a.npz", logit=np.zeros((2, 2)), labels=[0, 1])
    with pytest.raises(
        ValueError, match=r"no array 'logits'; it has: labels, logit\. If 'logit' is meant, pass names="
    ):
        ModelOutputs.load(tmp_path / "a.npz")
    assert ModelOutputs.load(tmp_path / "a.npz", names={"logits": "logit"}).n_classes == 2
    np.savez(tmp_path / "theirs.npz", out=np.eye(2), y=np.arange(2))
    with pytest.raises(ValueError, match=r"it has: out, y\. Say which is which: names={'logits': .*--names logits="):
        ModelOutputs.load(tmp_path / "theirs.npz")
    with pytest.raises(ValueError, match=r"to the file's; got 'out'\. Turn it round: {'logits': 'out'}"):
        ModelOutputs.load(tmp_path / "theirs.npz", names={"out": "logits"})
    np.savez(tmp_path / "b.npz", foo=np.zeros(2), bar=np.zeros(3))
    with pytest.raises(ValueError, match=r"has none of logits, .*; it has: bar, foo"):
        ModelOutputs.load(tmp_path / "b.npz")
    with pytest.raises(ValueError, match="no array 'scores' for logits; it has: bar, foo"):
        ModelOutputs.load(tmp_path / "b.npz", names={"logits": "scores"})


def test_extra_arrays_are_ignored_with_a_warning(tmp_path):
    np.savez(tmp_path / "a.npz", logits=np.zeros((2, 2)), images=np.zeros((2, 9)))
    with pytest.warns(UserWarning, match="also has images, ignored"):
        assert len(ModelOutputs.load(tmp_path / "a.npz")) == 2


def test_unknown_endings_and_missing_files_are_explained(tmp_path):
    with pytest.raises(FileNotFoundError, match="no file or folder at"):
        ModelOutputs.load(tmp_path / "nowhere.npz")
    (tmp_path / "a.xlsx").write_text("1,2")
    with pytest.raises(ValueError, match=r"'a\.xlsx' has no known ending: use \.npz, \.npy, \.safetensors, \.parquet"):
        ModelOutputs.load(tmp_path / "a.xlsx")


@needs("pyarrow")
def test_parquet_is_read_under_a_limit_and_explains_gaps(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    ModelOutputs(np.zeros((50_000, 20))).save(tmp_path / "big.parquet")
    with pytest.raises(ValueError, match="the limit for the file is 1000000 bytes"):
        ModelOutputs.load(tmp_path / "big.parquet", max_bytes=1_000_000)
    ragged = pa.table({"logits": pa.array([[1.0, 2.0], [3.0]])})
    pq.write_table(ragged, tmp_path / "ragged.parquet")
    with pytest.raises(ValueError, match="the lists of column 'logits' differ in length"):
        ModelOutputs.load(tmp_path / "ragged.parquet")
    pq.write_table(pa.table({"labels": pa.array([1, None])}), tmp_path / "gap.parquet")
    with pytest.raises(ValueError, match="column 'labels' has 1 missing values"):
        ModelOutputs.load(tmp_path / "gap.parquet")
    plain = pa.table({"logits": pa.array([[1.0, 2.0], [3.0, 4.0]])})  # lists without a fixed size, of equal length
    pq.write_table(plain, tmp_path / "plain.parquet")
    assert_array_equal(ModelOutputs.load(tmp_path / "plain.parquet").logits, [[1.0, 2.0], [3.0, 4.0]])


def test_without_pyarrow_parquet_says_which_extra_brings_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'atypicality\[parquet\]'"):
        ModelOutputs([[1.0, 2.0]]).save(tmp_path / "a.parquet")
    assert list(tmp_path.iterdir()) == []


# text that files cannot keep


def text_parts(values):
    """The same texts wherever outputs take them."""
    return [
        dict(ids=values),
        dict(class_names=values),
        dict(attributes={"tone": values}),
        dict(labels=values, class_names=["a", "b", "c"]),
    ]


@pytest.mark.parametrize("text", ["c\0", "\0c", "a\0b", "\ud800"])
@pytest.mark.parametrize("kind", [list, lambda texts: np.array(texts, object)])
def test_text_that_a_file_would_cut_is_refused_at_the_door(text, kind):
    for part in text_parts(kind(["a", text, "b"])):
        with pytest.raises(
            ValueError, match="must be text without NUL characters and lone surrogates; row 1 holds one"
        ):
            ModelOutputs(np.eye(3), **part)


@pytest.mark.parametrize("order", ["<", ">"])
def test_text_arrays_are_looked_through_in_either_byte_order(order):
    width = 3
    for text in ("\0b", "a\0b", "x\udfff"):
        values = np.array(["a", "bb", text], f"{order}U{width}")
        with pytest.raises(ValueError, match="row 2 holds one"):
            ModelOutputs(np.eye(3), ids=values)
    assert ModelOutputs(np.eye(3), ids=np.array(["a", "bb", ""], f"{order}U{width}")).ids.tolist() == ["a", "bb", ""]


def test_bytes_are_read_as_utf8_wherever_names_stand():
    words = ["ä", "b", "日本"]
    for kind in (np.array, list, lambda texts: np.array(texts, object)):
        coded = kind([word.encode() for word in words])
        outputs = ModelOutputs(np.eye(3), ids=coded, class_names=coded, labels=coded, attributes={"tone": coded})
        assert outputs.ids.tolist() == outputs.class_names.tolist() == outputs.attributes["tone"].tolist() == words
        assert outputs.labels.tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="ids must be text; as bytes they are not UTF-8"):
        ModelOutputs(np.eye(2), ids=[b"a", b"\xff"])


@needs("pyarrow")
def test_parquet_text_with_a_nul_is_refused_and_binary_is_text(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"logits": pa.array([[1.0, 2.0], [3.0, 4.0]])}
    pq.write_table(pa.table(columns | {"ids": pa.array(["a", "b\0"])}), tmp_path / "nul.parquet")
    with pytest.raises(ValueError, match=r"'nul\.parquet' .*column 'ids' must be text without NUL"):
        ModelOutputs.load(tmp_path / "nul.parquet")
    pq.write_table(pa.table(columns | {"ids": pa.array(["ä".encode(), b"b"])}), tmp_path / "binary.parquet")
    assert ModelOutputs.load(tmp_path / "binary.parquet").ids.tolist() == ["ä", "b"]


def test_an_array_name_with_a_nul_is_refused(tmp_path):
    with pytest.raises(ValueError, match="array names must be plain file names"):
        ModelOutputs(np.eye(2), attributes={"to\0ne": ["a", "b"]}).save(tmp_path / "a.npz")
    assert list(tmp_path.iterdir()) == []


def test_names_set_later_are_checked_as_those_given():
    outputs = ModelOutputs(np.eye(3), labels=[0, 1, 2])
    outputs.class_names = ["a", "b", "c"]
    assert outputs.class_names.tolist() == ["a", "b", "c"]
    assert outputs.with_classes(["c", "b", "a"]).labels.tolist() == [2, 1, 0]
    for wrong in (["a", "b"], ["a", "b", "b"], []):
        with pytest.raises(ValueError, match="class_names"):
            outputs.class_names = wrong
    assert outputs.class_names.tolist() == ["a", "b", "c"]
    outputs.class_names = None
    assert outputs.class_names is None
