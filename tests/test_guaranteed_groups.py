"""Groups that `groups=` of `ConditionalConformal` adds, of the row and of the label, and randomised sets."""

import numpy as np
import pytest
from conftest import world_part
from test_pinball import reference

import atypicality as aty
from atypicality import blocks
from atypicality.conformal import ConditionalConformal
from atypicality.conformal.guaranteed import Asked, class_groups, places_among
from atypicality.conformal.pinball import cutoff_steps
from atypicality.conformal.soft_groups import local_quantiles, soft_groups
from atypicality.datasets import make_world
from atypicality.shipping.refusals import refusals

ONE_APART = {0: "known", 1: "known", 2: "known", 3: "known", 4: "less"}


def biased_world(n, seed=0):
    """A world whose model gives the last of five classes far too little probability."""
    world = make_world(n, 5, atypical_noise=0.5, random_state=seed)
    probs = world.probs * np.array([1.0, 1.0, 1.0, 1.0, 0.1])
    return probs / probs.sum(axis=1, keepdims=True), world.labels, world.atypicality


def covered(sets, labels):
    return sets[np.arange(labels.size), labels]


# ---------------------------------------------------------------- what is asked for


def test_fifths_of_classes_by_their_share():
    groups, names = class_groups(Asked.of("class rarity"), 10, [5, 9, 1, 2, 3, 4, 6, 7, 8, 0], None)
    assert groups.tolist() == [2, 0, 4, 3, 3, 2, 1, 1, 0, 4]
    assert names == tuple(f"class rarity {i} of 5" for i in (1, 2, 3, 4, 5))
    assert class_groups(Asked.of("class rarity"), 3, [1, 3, 2], None)[0].tolist() == [2, 0, 1]


def test_a_mapping_calls_classes_by_column_or_by_name():
    by_name = class_groups(Asked.of({"cat": 1, "dog": 1, 2: 0}), 3, None, ["cat", "dog", "bus"])
    assert by_name[0].tolist() == [0, 0, 1]
    assert by_name[1] == ("1", "0")


PROBS, LABELS, RARE = biased_world(60)


@pytest.mark.parametrize(
    ("groups", "given", "message"),
    [
        (7, {}, 'groups must be "atypicality", "confidence".*got a int'),
        (("confidence", "confidence"), {}, "an axis at most once"),
        (("age", "sex"), {}, "at most one attribute"),
        (("class rarity", ONE_APART), {}, "one grouping of the classes"),
        ("class rarity", {}, "needs class_share=.*A head takes it"),
        ("class rarity", {"class_share": [1, 2]}, "one entry per class, 5; got 2"),
        ("class rarity", {"class_share": [-1, 1, 1, 1, 1]}, "none negative and some positive"),
        ("class-rarity", {}, "groups='class-rarity' is none of.*attributes= has none"),
        ("age", {"attributes": {"sex": ["f"] * 60}}, "attributes= has 'sex'.*one value per row"),
        ("age", {"attributes": {"age": ["f"] * 59}}, r"attributes\['age'\] must have one entry per row; got 59"),
        ("age", {"attributes": {"age": np.linspace(0, 1, 60)}}, "Cut numbers into groups first"),
        ({0: "a"}, {}, r"every class to a group; missing are 1, 2, 3, 4\.$"),
        ({0: "a", 9: "b"}, {}, "9, which is no class"),
        ({"cat": "a"}, {}, "'cat', which is no class"),
    ],
)
def test_groups_that_make_no_sense_are_refused(groups, given, message):
    with pytest.raises((ValueError, TypeError), match=message):
        ConditionalConformal(groups=groups).fit(PROBS, LABELS, atypicality=RARE, **given)


def test_an_attribute_with_too_many_values_is_refused():
    probs, labels, rarity = biased_world(300)
    with pytest.raises(ValueError, match=r"attributes\['id'\] has 300 values, too many"):
        ConditionalConformal(groups="id").fit(probs, labels, atypicality=rarity, attributes={"id": np.arange(300)})


def test_equal_shares_are_said():
    with pytest.warns(UserWarning, match="the same for all classes"):
        class_groups(Asked.of("class rarity"), 3, np.ones(3), None)


# ---------------------------------------------------------------- the algorithm


def test_thresholds_of_label_groups_are_those_of_highs():
    probs, labels, rarity = biased_world(260)
    edge = np.arange(260) < 60
    sets = ConditionalConformal(0.2, groups=ONE_APART, cells=3, knots=2, bandwidth=0.2)
    sets.fit(probs, labels, atypicality=rarity, edge_rows=edge)
    cells = np.searchsorted(sets.atypicality_edges_, rarity) * 3 + np.searchsorted(
        sets.confidence_edges_, probs.max(axis=1)
    )
    hats = soft_groups((3, 3), (2, 2)).reshape(9, 4)
    phi = np.vstack([np.column_stack([hats, np.ones(9)]), np.column_stack([hats, np.zeros(9)])])  # of full rank
    scores = 1 / probs[np.arange(260), labels]
    local = local_quantiles((3, 3), cells[~edge], scores[~edge], 0.8 + 1e-9, 0.2)
    place = cells + 9 * (labels == 4)
    exact = [reference(phi, place[~edge], scores[~edge], 0.8 + 1e-9, cell)[0] for cell in range(18)]
    expected = np.log(np.maximum(np.reshape(exact, (2, 9)), np.maximum(local, 1.0)))
    np.testing.assert_allclose(sets.thresholds_.reshape(2, 9), expected, rtol=1e-6)
    top = probs == probs.max(axis=1, keepdims=True)
    allowed = sets.thresholds_.reshape(2, 9)[:, cells].T[:, [0, 0, 0, 0, 1]]
    found = sets.predict_set(probs, atypicality=rarity)
    np.testing.assert_array_equal(found, (-np.log(probs) <= allowed + 1e-12) | top)


@pytest.mark.parametrize("randomized", [False, True])
def test_one_group_for_all_changes_nothing(randomized):
    probs, labels, rarity = biased_world(400)
    plain, one_class, one_value = (
        ConditionalConformal(groups=groups, randomized=randomized).fit(
            probs, labels, atypicality=rarity, attributes={"site": ["here"] * 400}
        )
        for groups in (None, dict.fromkeys(range(5), "all"), "site")
    )
    for other in (one_class, one_value):
        np.testing.assert_allclose(other.table_.ravel(), plain.table_.ravel(), rtol=1e-9)
        assert other.expected_coverage_.size == plain.expected_coverage_.size + 1


def test_groups_of_true_classes_are_covered_where_soft_groups_are_not_enough(seed):
    probs, labels, rarity = biased_world(12_000, seed)
    old, new = slice(0, 4000), slice(4000, None)
    less = labels[new] == 4
    hits = {}
    for groups in (None, ONE_APART):
        sets = ConditionalConformal(groups=groups).fit(probs[old], labels[old], atypicality=rarity[old])
        hits[groups is None] = covered(sets.predict_set(probs[new], atypicality=rarity[new]), labels[new])
    assert hits[True][less].mean() < 0.89
    spread = np.sqrt(0.09 * (1 / less.sum() + 1 / (0.9 * (labels[old] == 4).sum())))
    assert hits[False][less].mean() > 0.9 - 4 * spread
    assert hits[False][~less].mean() > 0.9 - 4 * spread


def test_sixths_and_attributes_are_expected_to_be_covered():
    probs, labels, rarity = biased_world(5000)
    age = np.where(labels % 2 == 0, "old", "young")
    sets = ConditionalConformal(groups=("atypicality", "confidence", "age"))
    sets.fit(probs, labels, atypicality=rarity, attributes={"age": age})
    assert sets.thresholds_.shape == (2, 12, 12)
    assert sets.group_names_[9:11] + sets.group_names_[-2:] == [
        "atypicality 1 of 6",
        "atypicality 2 of 6",
        "age = old",
        "age = young",
    ]
    assert sets.expected_coverage_.shape == (9 + 6 + 6 + 2,)
    # interpolated rows, as many as there are groups, may be on either side of the threshold
    assert (sets.expected_coverage_ > 0.9 - 23 / 750).all()
    assert "23" not in sets._guarantee()
    assert "14 groups (atypicality, confidence, age)" in sets._guarantee()


def test_values_never_seen_have_full_sets_and_are_named():
    probs, labels, rarity = biased_world(600)
    sets = ConditionalConformal(groups=("site", ONE_APART))
    sets.fit(probs, labels, atypicality=rarity, attributes={"site": np.arange(600) % 2})
    site = np.where(np.arange(600) == 3, 7, np.arange(600) % 2)
    with pytest.warns(UserWarning, match="1 of 600 rows have a value.*7.* in row 3"):
        found = sets.predict_set(probs, atypicality=rarity, attributes={"site": site})
    assert found[3].all()
    known = sets.predict_set(probs, atypicality=rarity, attributes={"site": np.arange(600) % 2})
    np.testing.assert_array_equal(np.delete(found, 3, axis=0), np.delete(known, 3, axis=0))
    with pytest.raises(ValueError, match="attributes= has none"):
        sets.predict_set(probs, atypicality=rarity)


def test_a_group_with_too_few_rows_has_full_sets_and_is_named():
    probs, labels, rarity = biased_world(500)
    labels = np.where(labels == 4, 3, labels)
    labels[:5] = 4
    sets = ConditionalConformal(groups={0: "a", 1: "a", 2: "a", 3: "a", 4: "rare"})
    with pytest.warns(
        UserWarning, match=r"10 threshold rows .* got \d in rare, so every set holds class 4 \('e'\)\. Give"
    ):
        sets.fit(probs, labels, atypicality=rarity, class_names=list("abcde"))
    assert sets.too_few_[1].all()
    assert not sets.too_few_[0].any()
    assert sets.predict_set(probs, atypicality=rarity)[:, 4].all()


# ---------------------------------------------------------------- randomised


def test_steps_are_those_of_highs(rng):
    groups = soft_groups((3, 3), (2, 2)).reshape(9, 4)
    cells, scores, tau = rng.integers(0, 9, 50), 1 / rng.random(50), 0.9
    levels, found = cutoff_steps(groups, cells, scores, tau)
    assert (np.diff(levels, axis=0) >= -1e-12).all()
    assert (np.diff(found, axis=0)[np.isfinite(found[1:])] >= -1e-9).all()
    for cell in range(9):
        for draw in rng.random(4):
            mine = found[(levels[:, cell] < draw).sum(), cell]
            # the reference pulls by tau: here by tau - 1 + draw
            theirs = _at_pull(groups, cells, scores, tau, cell, tau - 1 + draw)
            assert mine == pytest.approx(theirs, rel=1e-6)


def _at_pull(groups, cells, scores, tau, cell, pull):
    """The reference with another pull: rows count 1 / tau times as much as the test row's tau does."""
    from scipy.optimize import linprog

    n, d = cells.size, groups.shape[1]
    costs = np.r_[-pull * groups[cell], np.full(n, tau), np.full(n, 1 - tau)]
    rows = np.hstack([groups[cells], np.eye(n), -np.eye(n)])
    solved = linprog(costs, A_eq=rows, b_eq=scores, bounds=[(None, None)] * d + [(0, None)] * (2 * n))
    return np.sign(pull) * np.inf if solved.status != 0 else groups[cell] @ solved.x[:d]


def test_one_cell_randomised_by_hand():
    # 19 threshold rows, alpha = .12: .88 * 20 = 17.6, so the 18th score with chance .6 and the 17th with .4
    probs = np.column_stack([np.linspace(0.95, 0.5, 20), 1 - np.linspace(0.95, 0.5, 20)])
    sets = ConditionalConformal(0.12, cells=1, randomized=True)
    sets.fit(probs, np.zeros(20, int), atypicality=np.zeros(20) + np.arange(20), edge_rows=np.arange(20) == 0)
    np.testing.assert_allclose(sets.levels_.ravel(), [0.4], atol=1e-7)
    np.testing.assert_allclose(np.exp(-sets.thresholds_.ravel()), probs[[17, 18], 0], rtol=1e-8)


def test_draws_follow_the_number_of_the_row():
    probs, labels, rarity = biased_world(1500)
    sets = ConditionalConformal(groups=ONE_APART, randomized=True).fit(probs, labels, atypicality=rarity)
    whole = sets.predict_set(probs, atypicality=rarity)
    late = sets.predict_set(probs[700:], atypicality=rarity[700:], first_row=700)
    np.testing.assert_array_equal(late, whole[700:])
    assert (sets.predict_set(probs[700:], atypicality=rarity[700:]) != whole[700:]).any()
    with blocks.settings(block_rows=13, n_threads=2):
        np.testing.assert_array_equal(sets.predict_set(probs, atypicality=rarity), whole)
    assert 0.87 < covered(whole, labels).mean() < 0.93
    assert not whole.any(axis=1).all()


def test_few_rows_randomised():
    probs, labels, rarity = biased_world(8)
    sets = ConditionalConformal(randomized=True, cells=1).fit(probs, labels, atypicality=rarity)
    # 7 rows and .9 * 8 = 7.2: the largest score with chance .8, else the full set
    np.testing.assert_allclose(sets.levels_.ravel(), [0.8], atol=1e-7)
    assert np.isinf(sets.thresholds_.ravel()).tolist() == [False, True]


# ---------------------------------------------------------------- in a head


@pytest.fixture(scope="module")
def parts():
    worlds = [world_part(part, n, atypical_noise=1.0) for part, n in enumerate((500, 1600, 400))]
    return [
        aty.ModelOutputs(w.logits, embeddings=w.embeddings, labels=w.labels, attributes={"site": w.labels % 2})
        for w in worlds
    ]


def test_a_head_knows_the_shares_of_its_training_rows(parts):
    train = parts[0][np.argsort(parts[0].labels)[:300]]  # without the last class
    head = aty.ReliabilityHead(prediction_sets=ConditionalConformal(groups="class rarity"))
    with pytest.warns(UserWarning, match="train holds no row of class"):
        head.fit(train=train, calibration=parts[1])
    shares = np.bincount(train.labels, minlength=5)
    expected = class_groups(Asked.of("class rarity"), 5, shares, None)[0]
    np.testing.assert_array_equal(head.prediction_sets_.class_groups_, expected)
    answer = head.predict(parts[2])
    again = head.prediction_sets_.predict_set(answer.proba, atypicality=answer.atypicality)
    np.testing.assert_array_equal(answer.prediction_set, again)


def test_a_head_hands_on_the_attributes_of_its_outputs(parts, tmp_path):
    sets = ConditionalConformal(groups="site")
    head = aty.ReliabilityHead(prediction_sets=sets).fit(train=parts[0], calibration=parts[1])
    answer = head.predict(parts[2])
    own = {"atypicality": answer.atypicality, "attributes": parts[2].attributes}
    expected = head.prediction_sets_.predict_set(answer.proba, **own)
    np.testing.assert_array_equal(answer.prediction_set, expected)
    head.save(tmp_path)
    np.testing.assert_array_equal(aty.load(tmp_path).predict(parts[2]).prediction_set, expected)
    assert "groups= of an attribute" in refusals(head, searched=True)[0]
    three = aty.three_way_split(parts[1], random_state=0)
    assert head.fit(train=parts[0], calibration=three).prediction_sets_.attribute_values_.tolist() == [0, 1]


def test_pairs_are_compared_by_class_rarity(parts):
    methods = {
        "rarity": ("ts", ConditionalConformal(groups="class rarity")),
        "site": ("ts", ConditionalConformal(groups="site")),
    }
    compared = aty.compare(methods, parts[1], train=parts[0], n_splits=2)
    assert "rarity" in str(compared)


# ---------------------------------------------------------------- sixths of atypicality


def rarest_sixth_covered(seed, groups):
    """A model that is nearly always right but in the rarest sixth, whose neighbours need no second class."""
    rng = np.random.default_rng(seed)
    rarity, n = rng.random(5500), 2500
    top = np.where(rarity < 5 / 6, rng.uniform(0.97, 1.0, 5500), rng.uniform(0.4, 0.9, 5500))
    probs = np.c_[top, (1 - top)[:, None] * 0.5 ** np.arange(1, 8) / (1 - 0.5**7)]
    labels = (probs.cumsum(axis=1) < rng.random((5500, 1))).sum(axis=1).clip(0, 7)
    sets = ConditionalConformal(alpha=0.1, groups=groups).fit(probs[:n], labels[:n], atypicality=rarity[:n])
    rare = rarity[n:] > sets.atypicality_edges_[-2]  # twelve cells: the last two
    return covered(sets.predict_set(probs[n:], atypicality=rarity[n:]), labels[n:])[rare].mean()


def test_the_rarest_sixth_is_covered_where_it_is_asked_for():
    found = {groups: [rarest_sixth_covered(seed, groups) for seed in range(12)] for groups in (None, "atypicality")}
    error = np.std(found["atypicality"], ddof=1) / 12**0.5
    assert np.mean(found["atypicality"]) > 0.9 - 3 * error
    assert np.mean(np.subtract(found["atypicality"], found[None])) > 0


@pytest.mark.parametrize(("n", "alpha", "groups"), [(4600, 0.1, "atypicality"), (4400, 0.1, None), (4600, 0.005, None)])
def test_a_head_asks_for_sixths_of_atypicality_where_there_are_rows_for_them(n, alpha, groups):
    """Half of the rows and nine tenths of them are threshold rows: from 2,000, and 2 / alpha of each sixth."""
    world = make_world(n, 4, random_state=0)
    outputs = aty.ModelOutputs(world.logits, atypicality=world.atypicality, labels=world.labels)
    head = aty.ReliabilityHead(recalibration=aty.TemperatureScaling(), alpha=alpha).fit(calibration=outputs)
    assert head.prediction_sets_.groups == groups


def test_a_value_of_an_attribute_that_is_new_is_named_as_it_was_given():
    with pytest.warns(UserWarning, match="1 of 2 rows have a value .* as 'moon' in row 1: their sets hold all classes"):
        assert places_among(np.array(["a", "c"]), np.array(["c", "moon"])).tolist() == [1, 2]
