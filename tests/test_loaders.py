"""Loaders: tiny files in the published formats, a fake Hub, and errors that say what to download."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import needs
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from atypicality.datasets import loaders, readers
from atypicality.datasets.samples import Images, long_tailed_rows, split_rows


@pytest.fixture
def no_hub(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)


class FakeData:
    """What `datasets.load_dataset` gives: columns by name, rows by number, and the names of classes."""

    def __init__(self, columns, names=()):
        self.columns, self.names = columns, names
        self.features = {name: SimpleNamespace(names=list(names)) for name in columns}

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key):
        if isinstance(key, str):
            return self.columns[key]
        return {name: values[key] for name, values in self.columns.items()}

    def select(self, rows):
        return FakeData({name: [values[row] for row in rows] for name, values in self.columns.items()}, self.names)


@pytest.fixture
def hub(monkeypatch):
    asked = []

    def use(data):
        def load_dataset(*names, **options):
            asked.append((names, options))
            if isinstance(data, Exception):
                raise data
            return data

        monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
        return asked

    return use


# texts


def test_trec(tmp_path, hub):
    lines = b"NUM:dist How far is it ?\nHUM:ind Who was Andr\xe9\x85 ?\n\nABBR:exp What is NASA ?\n"
    (tmp_path / "TREC_10.label").write_bytes(lines)
    (tmp_path / "train.txt").write_bytes(b"LOC:city Where ?\n")
    found = loaders.load_trec("test", folder=tmp_path)
    assert found.inputs == ["How far is it ?", "Who was Andr\xe9\x85 ?", "What is NASA ?"]
    assert [found.class_names[label] for label in found.labels] == ["Number", "Person", "Abbreviation"]
    assert loaders.load_trec("train", folder=tmp_path).inputs == ["Where ?"]
    asked = hub(FakeData({"text": ["Where ?", "Who ?"], "coarse_label": [4, 3]}))
    again = loaders.load_trec("test")
    assert [again.class_names[label] for label in again.labels] == ["Location", "Person"]
    assert asked == [(("CogComp/trec",), {"split": "test", "revision": "refs/convert/parquet"})]
    (tmp_path / "TREC_10.label").write_text("How far is it ?\n")
    with pytest.raises(ValueError, match=r"line 1 of 'TREC_10\.label' must be 'COARSE:fine question'"):
        loaders.load_trec(folder=tmp_path)
    (tmp_path / "TREC_10.label").write_text("XYZ:a How far is it ?\n")
    with pytest.raises(ValueError, match="'XYZ' is not one of the template's labels"):
        loaders.load_trec(folder=tmp_path)


@pytest.mark.parametrize("header", ["", "Class Index,Title,Description\n"])
def test_ag_news(tmp_path, hub, header):
    (tmp_path / "test.csv").write_text(header + '"3","Fears, ""again""","Unions say"\n"4","Chips","New\nones"\n')
    found = loaders.load_ag_news(folder=tmp_path)
    assert found.inputs == ['Fears, "again" Unions say', "Chips New\nones"]
    assert [found.class_names[label] for label in found.labels] == ["Business", "Technology"]
    hub(FakeData({"text": ["a b"], "label": [0]}))
    assert loaders.load_ag_news().labels.tolist() == [0]
    (tmp_path / "test.csv").write_text('"3","only a title"\n')
    with pytest.raises(ValueError, match=r"row 1 of 'test\.csv' must have a class, a title and a description"):
        loaders.load_ag_news(folder=tmp_path)


def test_imdb(tmp_path, hub):
    for label, name, text in (("neg", "2_1", "bad<br />film"), ("neg", "10_3", "worse"), ("pos", "0_9", "gut ü")):
        folder = tmp_path / "aclImdb" / "test" / label
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    for folder in (tmp_path, tmp_path / "aclImdb"):
        found = loaders.load_imdb(folder=folder)
        assert found.inputs == ["bad\nfilm", "worse", "gut ü"]
        assert [found.class_names[label] for label in found.labels] == ["Negative", "Negative", "Positive"]
    hub(FakeData({"text": ["bad", "good"], "label": [0, 1]}))
    assert [found.class_names[label] for label in loaders.load_imdb().labels] == ["Negative", "Positive"]


def test_mnli(tmp_path, hub):
    rows = [("A man.", "A person.", "entailment"), ("x", "y", "-"), ("p", "q", "contradiction")]
    keys = ("sentence1", "sentence2", "gold_label")
    lines = [json.dumps(dict(zip(keys, row, strict=True))) for row in rows]
    (tmp_path / "multinli_1.0_dev_matched.jsonl").write_text("\n".join(lines))
    found = loaders.load_mnli(folder=tmp_path)
    assert found.inputs == [("A man.", "A person."), ("p", "q")]
    assert found.labels.tolist() == [0, 2]
    asked = hub(FakeData({"premise": ["p"], "hypothesis": ["q"], "label": [1]}))
    assert loaders.load_mnli("train").inputs == [("p", "q")]
    assert asked == [(("nyu-mll/glue", "mnli"), {"split": "train"})]
    hub(FakeData({"premise": ["p"], "hypothesis": ["q"], "label": [-1]}))
    with pytest.raises(ValueError, match=r"labels must be among .*; got '-1'"):  # GLUE's mark of no label
        loaders.load_mnli("train")
    for damaged in ("{", "[]", '{"sentence1": "a"}'):
        (tmp_path / "multinli_1.0_dev_matched.jsonl").write_text(damaged)
        with pytest.raises(ValueError, match=r"line 1 of .* must be an object with sentence1"):
            loaders.load_mnli(folder=tmp_path)


# images


def write_cifar10(folder, n=4, seed=0):
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    images = rng.integers(0, 256, (6, n, 3, 32, 32), dtype=np.uint8)
    labels = rng.integers(0, 10, (6, n), dtype=np.uint8)
    for i, name in enumerate([f"data_batch_{b}.bin" for b in range(1, 6)] + ["test_batch.bin"]):
        np.concatenate([labels[i][:, None], images[i].reshape(n, -1)], axis=1).tofile(folder / name)
    (folder / "batches.meta.txt").write_text("\n".join([f"class{i}" for i in range(10)]) + "\n\n")
    return images.transpose(0, 1, 3, 4, 2), labels


def test_cifar10(tmp_path):
    images, labels = write_cifar10(tmp_path / "cifar-10-batches-bin")
    for folder in (tmp_path, tmp_path / "cifar-10-batches-bin"):
        train, test = (loaders.load_cifar10(part, folder=folder) for part in ("train", "test"))
        assert_array_equal(train.sources, images[:5].reshape(20, 32, 32, 3))
        assert_array_equal(train.labels, labels[:5].ravel())
        assert_array_equal(test.sources, images[5])
        assert test.class_names == tuple(f"class{i}" for i in range(10))
    image, label = test.with_transform(lambda image: image.astype(float))[1]
    assert image.dtype == float
    assert label == labels[5, 1]
    tailed = loaders.load_cifar10_lt("train", folder=tmp_path, imbalance=1.0)
    assert len(tailed) <= len(train)
    assert len(loaders.load_cifar10_lt("test", folder=tmp_path)) == 4


def test_cifar100_takes_the_fine_label(tmp_path):
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    records = np.zeros((3, 3074), np.uint8)
    records[:, 0], records[:, 1], records[:, 2] = 7, [0, 1, 2], 255
    records.tofile(folder / "test.bin")
    (folder / "fine_label_names.txt").write_text("apple\nbear\ncloud\n")
    found = loaders.load_cifar100(folder=tmp_path)
    assert found.labels.tolist() == [0, 1, 2]
    assert_array_equal(found.sources[0][0, 0], [255, 0, 0])
    (folder / "test.bin").write_bytes(b"\0" * 100)
    with pytest.raises(ValueError, match=r"'test\.bin' must be records of 3074 bytes.*100 bytes"):
        loaders.load_cifar100(folder=tmp_path)


def test_cifar_pickles_are_refused(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name in ("data_batch_1", "batches.meta"):
        (folder / name).write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    for around in (tmp_path, folder):
        with pytest.raises(FileNotFoundError, match=r"pickles that can run code.*binary version"):
            loaders.load_cifar10(folder=around)


def test_cifar_from_the_hub(hub):
    pixels = [np.full((32, 32, 3), i, np.uint8) for i in range(3)]
    asked = hub(FakeData({"img": pixels, "fine_label": [2, 0, 1]}, ("a", "b", "c")))
    found = loaders.load_cifar100("train")
    assert asked[0][0] == ("uoft-cs/cifar100",)
    assert found.class_names == ("a", "b", "c")
    part = found.take([2, 0])
    assert part[0][1] == 1
    assert_array_equal(part[1][0], pixels[0])


def write_image(path, colour):
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (3, 2), colour).save(path)


@needs("PIL")
def test_imagenet_and_imagenet_r(tmp_path):
    for part in ("imagenet/val", "imagenet-r"):
        write_image(tmp_path / part / "n02" / "b.png", (0, 0, 255))
        write_image(tmp_path / part / "n01" / "a.png", (255, 0, 0))
        (tmp_path / part / "README.txt").write_text("not a class")
    for found in (
        loaders.load_imagenet("val", folder=tmp_path / "imagenet"),
        loaders.load_imagenet_r(folder=tmp_path),
        loaders.load_imagenet_r(folder=tmp_path / "imagenet-r"),
    ):
        assert found.labels.tolist() == [0, 1]
        assert found.class_names == ("n01", "n02")
        assert_array_equal(found[1][0], np.broadcast_to(np.uint8([0, 0, 255]), (2, 3, 3)))
    (tmp_path / "imagenet" / "train").mkdir()
    with pytest.raises(FileNotFoundError, match="it has no folders of images"):
        loaders.load_imagenet("train", folder=tmp_path / "imagenet")


def test_lists_of_long_tailed_sets(tmp_path):
    (tmp_path / "ImageNet_LT_train.txt").write_text("train/n01/a b.JPEG 0\ntrain/n02/c.JPEG 999\n")
    (tmp_path / "Places_LT_val.txt").write_text("data_256/a/airfield/1.jpg 364\n")
    found = loaders.load_imagenet_lt("train", folder=tmp_path)
    assert found.sources == [tmp_path / "train/n01/a b.JPEG", tmp_path / "train/n02/c.JPEG"]
    assert found.labels.tolist() == [0, 999]
    places = loaders.load_places365_lt("val", folder=tmp_path, images=tmp_path / "places")
    assert places.sources == [tmp_path / "places/data_256/a/airfield/1.jpg"]
    for line, problem in (
        ("train/a.JPEG", "must be 'image label'"),
        ("../../etc/passwd 1", "must stay inside"),
        ("/etc/passwd 1", "must stay inside"),
        ("a.JPEG 1000", r"must lie in 0 \.\. 999; got 1000"),
    ):
        (tmp_path / "ImageNet_LT_train.txt").write_text(line + "\n")
        with pytest.raises(ValueError, match=problem):
            loaders.load_imagenet_lt("train", folder=tmp_path)


HEADER = "md5hash,fitzpatrick_scale,label,nine_partition_label\n"


def test_fitzpatrick17k(tmp_path):
    rows = [("aa", "-1", "b"), ("bb", "1", "a"), ("cc", "4", "a"), ("dd", "6.0", "c"), ("ee", "2", "b")]
    table = "".join(f"{code},{scale},x,{label}\n" for code, scale, label in rows)
    (tmp_path / "fitzpatrick17k.csv").write_text(HEADER + table)
    with pytest.raises(FileNotFoundError, match="none of its images"):
        loaders.load_fitzpatrick17k(folder=tmp_path)
    (tmp_path / "images").mkdir()
    for code in ("aa", "bb", "cc", "dd"):
        (tmp_path / "images" / f"{code}.jpg").touch()
    with pytest.warns(UserWarning, match="1 of the 5 images"):
        found = loaders.load_fitzpatrick17k(folder=tmp_path)
    assert found.class_names == ("a", "b", "c")
    assert found.labels.tolist() == [1, 0, 0, 2]
    assert found.attributes["skin_tone"].tolist() == ["Unknown", "1-2", "3-4", "5-6"]
    assert found.take([3]).attributes["skin_tone"].tolist() == ["5-6"]
    for content, problem in (
        ("md5hash,label\n", "lacks nine_partition_label, fitzpatrick_scale"),
        (HEADER + "aa,7,x,a\n", "row 2 .* scale of 1 to 6, or -1; got '7'"),
        (HEADER + "../aa,1,x,a\n", "row 2 .* by its hash; got '../aa'"),
    ):
        (tmp_path / "fitzpatrick17k.csv").write_text(content)
        with pytest.raises(ValueError, match=problem):
            loaders.load_fitzpatrick17k(folder=tmp_path)


@pytest.mark.parametrize("scale", range(1, 7))
def test_skin_tones_go_in_pairs(scale):
    assert readers._skin_tone(str(scale), 1, None) == {1: "1-2", 2: "3-4", 3: "5-6"}[-(-scale // 2)]


# what is missing


LOADERS = [getattr(loaders, name) for name in loaders.__all__]


@pytest.mark.parametrize("load", LOADERS, ids=lambda load: load.__name__)
def test_what_is_missing_is_named(load, tmp_path, no_hub):
    with pytest.raises(FileNotFoundError, match=r"no folder= was given.* Download it from https://.*folder="):
        load()
    with pytest.raises(FileNotFoundError, match=r"Download it from https://.*, unpack it, and pass folder= the folder"):
        load(folder=tmp_path)


def test_a_hub_that_fails_and_wrong_parts_are_named(hub):
    hub(ConnectionError("no route to host"))
    with pytest.raises(FileNotFoundError, match=r"datasets could not fetch it \(no route to host\)\. Download"):
        loaders.load_trec()
    with pytest.raises(ValueError, match="part must be one of 'train', 'test'; got 'validation'"):
        loaders.load_cifar10("validation")


# rows


@given(st.integers(2, 12), st.integers(20, 60), st.floats(1, 200), st.integers(0, 5))
def test_long_tails_follow_their_law(k, size, imbalance, seed):
    labels = np.repeat(np.arange(k), size)
    rows = long_tailed_rows(labels, imbalance=imbalance, random_state=seed)
    counts = np.bincount(labels[rows], minlength=k)
    assert_array_equal(rows, np.unique(rows))
    assert counts[0] == size
    assert (np.diff(counts) <= 0).all()
    exact = size * imbalance ** (-np.arange(k) / (k - 1))
    assert (np.abs(counts - exact) <= 1).all()


def test_long_tail_of_cifar10_has_its_published_size():
    labels = np.repeat(np.arange(10), 5000)
    counts = np.bincount(labels[long_tailed_rows(labels)])
    assert counts.tolist() == [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    with pytest.raises(ValueError, match="at least two classes"):
        long_tailed_rows(np.zeros(5, int))


@given(st.integers(0, 50), st.integers(0, 3))
def test_splits_are_disjoint_and_complete(n, seed):
    parts = split_rows(n, (0.5, 0.25, 0.25), random_state=seed)
    assert_array_equal(np.sort(np.concatenate(parts)), np.arange(n))
    assert abs(parts[0].size - n / 2) <= 0.5
    with pytest.raises(ValueError, match="sum to 1"):
        split_rows(n, (0.5, 0.4))


def test_images_end_where_they_end():
    images = Images(np.zeros((2, 4, 4, 3), np.uint8), np.array([0, 1]), ("a", "b"))
    assert len(list(images)) == 2
    with pytest.raises(IndexError, match="row must lie below 2; got 2"):
        images[2]
