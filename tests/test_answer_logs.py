"""Logs of an app as they are: other names of fields, answers checked in part, values missing or out of range."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
from answer_cases import answer_world
from scipy.stats import binom, fisher_exact

import atypicality as aty
from atypicality.cli import main
from atypicality.llm import AnswerHead, Answers
from atypicality.llm.known_rows import SeenRows
from atypicality.llm.shifts import LEVEL, beyond_range, fisher_chance, level_words, moved_words
from atypicality.llm.signals import SignalColumns


@pytest.fixture(scope="module")
def fitted():
    answers, _ = answer_world(1600, 0)
    return AnswerHead().fit(answers[:1000]), answers[1000:]


def test_records_are_the_opposite_of_records():
    answers = Answers(
        ["p", "q", "r"],
        ["a"] * 3,
        log_probs=[[-0.5], None, [-1.0, -0.1]],
        scores={"judge": [None, 2.0, np.nan]},
        correct=[True, None, False],
        ids=["a", "b", "c"],
    )
    records = list(answers.records())
    assert [record.get("correct") for record in records] == [True, None, False]
    again = Answers.from_records(records)
    assert list(again.records()) == records
    assert repr(again) == "Answers(3 rows; log_probs, scores judge, correct of 2, ids)"
    assert again[again.checked].correct.tolist() == [True, False]
    assert again[1:2].correct is None
    with pytest.raises(TypeError, match=r"Pass \[record\]"):
        Answers.from_records(records[0])
    with pytest.raises(TypeError, match="record 0 is a str"):
        Answers.from_records(["p"])
    with pytest.raises(ValueError, match=r"^record 1: 'answer' is missing; the fields are prompt\.$"):
        Answers.from_records([{"prompt": "p", "answer": "a"}, {"prompt": "p"}])
    with pytest.warns(UserWarning, match="a record has fields that are not read: model"):
        Answers.from_records([{"prompt": "p", "answer": "a", "model": "m"}])


def test_fields_of_other_names_are_read_by_them(tmp_path):
    theirs = [{"question": f"q{row}", "answer": "a", "judge": row / 2, "scores": {"own": row}} for row in range(3)]
    names = {"prompt": "question", "scores.judge": "judge"}
    found = Answers.from_records(theirs, names=names)
    assert found.prompts.tolist() == ["q0", "q1", "q2"]
    scores = {name: values.tolist() for name, values in found.scores.items()}
    assert scores == {"own": [0.0, 1.0, 2.0], "judge": [0.0, 0.5, 1.0]}
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, theirs)))
    assert list(Answers.read(tmp_path / "a.jsonl", names=names).records()) == list(found.records())
    with pytest.raises(ValueError, match=r"names must be of id, .*, scores\.NAME or attribute\.NAME; got 'logits'"):
        Answers.from_records(theirs, names={"logits": "judge"})


def test_a_partly_checked_table_fits_by_what_is_checked(fitted):
    _, answers = fitted
    mixed = answers[:]
    mixed.correct = np.array([value if row % 3 else None for row, value in enumerate(answers.correct)], object)
    with pytest.warns(UserWarning, match="'correct' is known of 400 of 600 answers: the others are left out"):
        head = AnswerHead().fit(mixed)
    alone = AnswerHead().fit(mixed[mixed.checked])
    assert head.predict(answers).confidence.tolist() == alone.predict(answers).confidence.tolist()
    assert head.outputs(mixed).labels is None


def test_the_shell_takes_a_log_with_its_own_names_and_checked_in_part(fitted, tmp_path, monkeypatch, capsys):
    _, answers = fitted
    monkeypatch.chdir(tmp_path)
    records = list(answers.records())
    with open("log.jsonl", "w") as file:
        for row, record in enumerate(records):
            theirs = {"question": record.pop("prompt")} | record
            theirs |= {"judge": theirs.get("scores", {}).pop("noise", None)}
            if row % 3 == 0:
                del theirs["correct"]
            print(json.dumps(theirs), file=file)
    names = ["--names", "prompt=question,scores.noise=judge"]
    with pytest.warns(UserWarning, match="'correct' is known of 400 of 600 answers"):
        assert main(["fit", "--calibration", "log.jsonl", *names, "--out", "head"]) == 0
    capsys.readouterr()
    assert main(["monitor", "head", "watch", "log.jsonl", *names, "--max-risk", "0.2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["rows"], told["labelled"], told["max_risk"]) == (600, 400, 0.2)
    assert main(["monitor", "head", "watch", "log.jsonl", *names]) == 0
    assert "was counted before" in capsys.readouterr().err


def test_a_field_that_is_missing_more_often_is_named(fitted, tmp_path):
    head, answers = fitted
    lost = answers[:400]
    lost.scores = lost.scores | {"verbalised": np.full(400, np.nan)}  # 30 % were missing
    with pytest.warns(UserWarning, match=r"scores\['verbalised'\] is missing in 100\.0% of these 400 answers"):
        said = head.predict(lost)
    assert (said.lacking, said.summary()["lacking"]) == (("scores['verbalised']",), ["scores['verbalised']"])
    assert head.predict(answers).lacking == head.predict(lost[:3]).lacking == ()  # of three rows it may be chance
    [alarm] = [one for one in aty.Monitor(head).add(head.outputs(lost), at=0) if one.stream == "missing"]
    assert str(alarm).startswith("scores['verbalised'] missing in 100% of 400 rows since 1970-01-01, 2")
    head.save(tmp_path / "head")
    lost.write(tmp_path / "a.jsonl")
    words = ["predict", str(tmp_path / "head"), str(tmp_path / "a.jsonl"), "--out", str(tmp_path / "a.csv")]
    with pytest.warns(UserWarning, match="the data has drifted"):
        assert main([*words, "--exit-code"]) == 3
    old = copy.copy(head)  # a head from an older bundle has not counted what is missing
    old.reference_ = replace(head.reference_, words={})
    assert old.predict(lost).lacking == ()
    assert not old.outputs(lost).attributes
    assert "miss" in {stream.name for stream in aty.Monitor(old)._tests.streams}


def test_without_atypicality_the_exit_code_says_what_it_tests(tmp_path, capsys, rng):
    score = rng.random(200)
    answers = Answers(["p"] * 200, ["a"] * 200, scores={"judge": score}, correct=rng.random(200) < score)
    AnswerHead().fit(answers).save(tmp_path / "head")
    answers.write(tmp_path / "a.jsonl")
    words = ["predict", str(tmp_path / "head"), str(tmp_path / "a.jsonl"), "--out", str(tmp_path / "a.csv")]
    assert main([*words, "--exit-code"]) == 0
    assert (
        "without atypicality: --exit-code tests only missing fields and values of signals." in capsys.readouterr().err
    )


def test_the_test_of_missing_fields_is_fishers():
    for counts in ((0, 10, 3, 20), (7, 10, 3, 20), (10, 10, 0, 20), (5, 400, 1, 300)):
        count, n, before, n_before = counts
        exact = fisher_exact([[count, n - count], [before, n_before - before]], alternative="greater").pvalue
        assert fisher_chance(*counts) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(("values", "told"), [([95.0], True), ([5.5], False), ([5.5] * 4, True), ([-4.0], False)])
def test_scores_outside_their_range_are_named(rng, values, told):
    column = SignalColumns.of("judge", rng.permutation(np.linspace(0, 5, 300)))
    assert (column.least, column.most, column.n_known) == (0, 5, 300)
    # four of four values beyond the largest of 300 have a chance of 4! / (301 * 302 * 303 * 304), one of 1 / 301
    message = beyond_range(column, np.array([np.nan, *values]))
    n = len(values)
    assert message.startswith(f"scores['judge'] is outside its fitted range, 0 to 5, in {n} of {n} answer") == told
    assert bool(message) == told


def test_a_judge_of_another_scale_is_warned_of(rng):
    score = rng.random(600)
    answers = Answers(["p"] * 600, ["a"] * 600, scores={"judge": 5 * score}, correct=rng.random(600) < score)
    head = AnswerHead().fit(answers)
    with pytest.warns(UserWarning, match=r"is outside its fitted range, 0\.\S+ to \S+, in 1 of 1 answer that"):
        head.predict(Answers(["p"], ["a"], scores={"judge": [95.0]}))


def trusted(n, seed, **more):
    """Answers whose judge, 1 to 5, says all; every prompt is another."""
    rng = np.random.default_rng(seed)
    judge = rng.integers(1, 6, n).astype(float)
    correct = rng.random(n) < np.array([0.2, 0.5, 0.8, 0.95, 0.99])[judge.astype(int) - 1]
    parts = {"scores": {"judge": judge}, "correct": correct} | more
    return Answers([f"question {seed}-{row}" for row in range(n)], ["yes"] * n, **parts)


def test_what_no_fitted_answer_is_like_is_not_accepted(tmp_path):
    """Rows without a signal whose absence was never seen, far out of range, or empty; others as before."""
    head, new = AnswerHead().fit(trusted(800, 0)), trusted(50, 1)
    plain = head.predict(new, max_risk=0.2)
    assert 0.3 < plain.accepted.mean() < 1
    odd = new[:]
    odd.scores = {"judge": new.scores["judge"].copy()}
    best = np.flatnonzero(plain.accepted)[:4]
    odd.scores["judge"][best[:2]] = np.nan, 100.0
    odd.answers = new.answers.copy()
    odd.answers[best[2]] = " "
    with pytest.warns(UserWarning, match="judge|empty") as told:
        said = head.predict(odd, max_risk=0.2)
    assert np.flatnonzero(plain.accepted & ~said.accepted).tolist() == best[:3].tolist()
    assert (said.advice[best[:3]] == "ask a person").all()
    for text in (
        "with max_risk such answers are not accepted",
        "outside its fitted range",
        "1 of 50 answers are empty",
    ):
        assert sum(text in str(one.message) for one in told) >= 1, text
    with pytest.warns(UserWarning, match="is missing in 1 row"):
        [bare] = head.predict(Answers.from_records([{"prompt": "q", "answer": "a"}]), max_risk=0.2).accepted
    assert not bare
    with pytest.warns(UserWarning, match="judge|1 of 50 answers are empty"):
        monitored = head.predict(head.outputs(odd), max_risk=0.2)
    assert monitored.accepted.tolist() == said.accepted.tolist()
    with pytest.warns(UserWarning, match="judge|1 of 50 answers are empty"):
        overall = head.evaluate(odd, max_risk=0.2).table("overall", metric="accepted_share")
    assert overall[0]["value"] == said.accepted.mean()


def test_absence_that_was_learnt_is_judged_and_that_of_everything_is_not():
    answers, rng = trusted(800, 0), np.random.default_rng(2)
    judge, kind = answers.scores["judge"], rng.integers(3, size=800)  # without the one, without the other, with both
    other = np.where(answers.correct, 0.9, 0.1) + rng.normal(size=800) / 2
    answers.scores = {"judge": np.where(kind == 0, np.nan, judge), "other": np.where(kind == 1, np.nan, other)}
    head = AnswerHead().fit(answers)
    assert head.recalibration_.used_fields == {"scores['judge']": True, "scores['other']": True}
    rows = [{"prompt": "q", "answer": "a", "scores": scores} for scores in ({"other": 1.5}, {"judge": 5}, None)]
    assert head.predict(Answers.from_records(rows), max_risk=0.3).accepted.tolist() == [True, True, False]


def test_another_scale_ends_with_the_exit_code(tmp_path):
    AnswerHead().fit(trusted(400, 0)).save(tmp_path / "head")
    for name, times in (("same", 1), ("more", 20), ("less", 0.2)):
        new = trusted(60, 1)
        new.scores = {"judge": new.scores["judge"] * times}
        new.write(tmp_path / f"{name}.jsonl")
        words = ["predict", str(tmp_path / "head"), str(tmp_path / f"{name}.jsonl"), "--out", str(tmp_path / "a.csv")]
        if name == "same":
            assert main([*words, "--exit-code"]) == 0
            continue
        with pytest.warns(UserWarning, match="outside its fitted range"):
            assert main(words) == 4


@pytest.mark.parametrize(("step", "moved"), [(1, True), (-1, True), (0, False)])
@pytest.mark.parametrize("used", [True, False])
def test_a_judge_that_becomes_more_lenient_on_its_scale_has_drifted(tmp_path, step, moved, used):
    known, new = trusted(800, 0), trusted(400, 1)
    if not used:
        known.correct = np.random.default_rng(2).random(800) < 0.8
    head = AnswerHead().fit(known)
    assert bool(head.recalibration_.used_fields) == used
    new.scores = {"judge": np.clip(new.scores["judge"] + step, 1, 5)}
    head.save(tmp_path / "head")
    new.write(tmp_path / "a.jsonl")
    words = ["predict", str(tmp_path / "head"), str(tmp_path / "a.jsonl"), "--out", str(tmp_path / "a.csv")]
    if not moved:
        assert main([*words, "--exit-code"]) == 0
        assert not aty.Monitor(head).add(head.outputs(new), at=0)
        return
    told = r"scores\['judge'\] is (larger|smaller) than in the held-out answers: .* of 400 that have it are at or below"
    with pytest.warns(UserWarning, match=told + (".*not guaranteed there" if used else ".*does not depend on it")):
        assert main([*words, "--exit-code"]) == 3
    with pytest.warns(UserWarning, match="the data has drifted"):
        said = head.predict(new)
    assert (said.moved, said.summary()["moved"]) == (("scores['judge']",), ["scores['judge']"])
    assert head.predict(new[:99]).moved == ()  # a request is no batch
    alarms = [
        one for one in aty.Monitor(head).add(head.outputs(new)._replaced(labels=None), at=0) if "level" in one.stream
    ]
    assert str(alarms[0]).startswith(f"scores['judge'] {'rose' if step > 0 else 'fell'}: ")
    assert f"of 400 rows since 1970-01-01 are {'above' if step > 0 else 'at or below'} " in str(alarms[0])


def test_the_test_of_moved_values_is_fishers_and_keeps_its_level(monkeypatch, seed):
    held_out = {f"attribute {LEVEL}judge": {"1.0": 300, "2.0": 300, "inf": 400, "nan": 7}}
    new = {f"{LEVEL}judge": np.repeat(["1.0", "2.0", "inf", "nan"], [20, 30, 150, 99])}
    # at or below 2.0 are 50 of 200 and 600 of 1000; both ways at every word, "inf" and "nan" too, are eight tests
    exact = 8 * fisher_exact([[150, 50], [400, 600]], alternative="greater").pvalue
    for chance, found in ((exact * 1.001, True), (exact * 0.999, False)):
        monkeypatch.setattr("atypicality.llm.shifts.CHANCE", chance)
        assert bool(moved_words(new, held_out)) == found
    monkeypatch.setattr("atypicality.llm.shifts.CHANCE", 0.2)
    monkeypatch.setattr("atypicality.llm.shifts.LEAST_MOVED", 0.0)
    rng, alarms, repeats = np.random.default_rng(seed), 0, 300
    for _ in range(repeats):
        edges = np.unique(np.quantile(rng.integers(0, 12, 200), (0.1, 0.25, 0.5, 0.75, 0.9), method="inverted_cdf"))
        old, now = (level_words(rng.integers(0, 12, n).astype(float), edges.astype(float)) for n in (150, 120))
        counts = dict(zip(*(part.tolist() for part in np.unique(old, return_counts=True)), strict=True))
        alarms += bool(moved_words({LEVEL + "x": now}, {f"attribute {LEVEL}x": counts}))
    assert alarms <= binom(repeats, 0.2).ppf(0.9999)


def test_a_score_on_two_scales_is_warned_of_at_the_fit():
    answers = trusted(400, 0)
    judge = answers.scores["judge"]
    answers.scores = {"judge": np.where(np.arange(400) % 2, judge, (judge - 1) / 4)}
    with pytest.warns(
        UserWarning, match=r"^scores\['judge'\] may be on two scales: \d+ values are between 0 and 1, and"
    ):
        AnswerHead().fit(answers)
    for fine in (judge / 2, judge / 10, judge - 3, judge):  # with 1.5 among them; parts alone; negative; whole alone
        answers.scores = {"judge": fine}
        AnswerHead().fit(answers)


def test_errors_name_the_fields_of_the_file():
    names = {"correct": "human", "scores.judge": "judge_score"}
    own = {"prompt": "p", "answer": "a"}
    for more, message in (
        (
            {"human": "right"},
            r"'human' must be true or false; got 'right'.*record\.pop\(\"human\"\).*leave correct=human out",
        ),
        ({"judge_score": "3"}, "'judge_score' must hold finite numbers; got '3'. Write it as a number"),
        ({"judge_score": float("nan")}, "got nan. Leave out what is not known, or write null"),
    ):
        with pytest.raises(ValueError, match=message):
            Answers.from_records([own | more], names=names)


def test_a_file_without_correct_is_told_which_field_may_be_it(tmp_path, capsys):
    rows = [{"prompt": "p", "answer": "a"}, {"prompt": "p", "answer": "a", "human": None}]
    for value, message in (
        ("right", """Is it 'human'? Of words make it before: if "human" in record: record["correct"] ="""),
        (True, "Is it 'human'? Give --names correct=human."),
        (None, "it has none.\n"),
    ):
        lines = [*rows, {"prompt": "p", "answer": "a", "human": value}]
        (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
        with pytest.warns(UserWarning, match="fields that are not read: human"):
            assert main(["fit", "--calibration", str(tmp_path / "a.jsonl"), "--out", str(tmp_path / "head")]) == 2
        assert message in capsys.readouterr().err


def test_attributes_of_answers_have_tables(tmp_path, capsys):
    head = AnswerHead().fit(trusted(800, 0))
    records = [record | {"topic": "ab"[row % 3 == 0]} for row, record in enumerate(trusted(300, 1).records())]
    del records[0]["topic"]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, records)))
    answers = Answers.read(tmp_path / "a.jsonl", names={"attribute.topic": "topic"})
    assert list(Answers.from_records(answers.records()).records()) == list(answers.records())
    topic = answers.attributes["topic"]
    assert topic[:3].tolist() == ["not given", "a", "a"]
    head.save(tmp_path / "head")
    said = head.predict(answers, max_risk=0.2)
    words = ["evaluate", str(tmp_path / "head"), str(tmp_path / "a.jsonl"), "--names", "attribute.topic=topic"]
    assert main([*words, "--max-risk", "0.2", "--json"]) == 0
    rows = aty.Evaluation.from_json(capsys.readouterr().out).table("subgroups", metric="accepted_risk")
    kept = {name: said.accepted & (topic == name) for name in ("a", "b")}
    told = {row["subgroup"]: (row["count"], row["value"]) for row in rows}
    assert {name: told[name] for name in kept} == {
        name: (some.sum(), pytest.approx((~answers.correct[some]).mean())) for name, some in kept.items()
    }
    assert main([*words, "--max-risk", "0.2"]) == 0
    out, some = capsys.readouterr().out, said.accepted
    assert "Advice of the head" not in out
    [told] = [line.split() for line in out.splitlines() if line.startswith("not accepted")]
    assert told[2:4] == [str((~some).sum()), f"{answers.correct[~some].mean():.3f}"]
    with pytest.raises(ValueError, match="'topic' must hold texts"):
        Answers.from_records([records[1] | {"topic": 0.5}], names={"attribute.topic": "topic"})


def test_copies_count_once_where_prompts_tell_answers_apart():
    answers = trusted(300, 0)
    again = answers[np.repeat(np.arange(300), 8)]
    again.ids = np.arange(2400)
    with pytest.warns(UserWarning, match=r"^2,100 of 2,400 answers are copies of others"):
        head = AnswerHead().fit(again)
    assert head.sizes_ == {"recalibration": 150, "thresholds": 150}
    assert head.predict(answers).confidence.tolist() == AnswerHead().fit(answers).predict(answers).confidence.tolist()
    again.correct = np.where(np.arange(2400) % 8 == 0, ~again.correct, again.correct)  # another opinion is no copy
    with pytest.warns(UserWarning, match=r"^1,800 of 2,400 answers are copies"):
        AnswerHead().fit(again)
    again.prompts = np.full(2400, "Which is kinder?", object)
    assert AnswerHead().fit(again).sizes_["thresholds"] == 1200  # five verdicts are equal by themselves


def test_answers_of_the_fit_are_noticed_and_equal_scores_are_not(tmp_path):
    answers, other = trusted(300, 0), trusted(300, 1)
    head = AnswerHead().fit(answers)
    head.evaluate(other)  # warnings are errors
    both = Answers.from_records([*list(answers.records())[:100], *other.records()])
    for given, share in ((answers, "100.0%"), (both, "25.0%")):
        with pytest.warns(UserWarning, match=rf"^{share} of these answers are among those that 'head' was fitted on"):
            head.evaluate(given)
    head.save(tmp_path)
    assert AnswerHead.load(tmp_path).seen_.share(both) == 0.25
    for one in (answers, other):
        one.prompts = np.full(300, "", object)
    AnswerHead().fit(answers).evaluate(other)  # each of five scores was there before


def test_many_rows_are_known_by_the_smallest_of_their_marks(monkeypatch):
    monkeypatch.setattr("atypicality.llm.known_rows.MOST_MARKS", 100)
    answers, other = trusted(1000, 0), trusted(1000, 1)
    seen = SeenRows.of(answers)
    both = Answers.from_records([*list(answers.records())[:500], *other.records()])
    assert seen.marks.size == seen.n_rows == 100
    # of about 150 rows with such marks a third is seen: five standard errors
    assert abs(seen.share(both) - 1 / 3) < 5 * np.sqrt(2 / 9 / 150)
    assert (seen.share(answers), seen.share(other)) == (1.0, 0.0)


def test_a_signal_that_is_the_label_and_labels_turned_round_are_doubted():
    answers = trusted(400, 0)
    answers.scores["copy"] = np.where(answers.correct, 1.0, 0.0)
    with pytest.warns(UserWarning, match=r"^copy tells correct from wrong answers almost perfectly \(AUROC 1\.000\)"):
        AnswerHead().fit(answers)
    world, _ = answer_world(600, 0)
    with pytest.warns(UserWarning, match="is 'correct' inverted") as told:
        AnswerHead().fit(world, ~world.correct)
    assert [str(one.message).partition(" is larger for wrong")[0] for one in told] == ["log_prob_mean", "agreement"]


def test_a_head_reads_files_by_the_names_of_its_fit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, seed in (("known", 0), ("new", 1)):
        rows = trusted(300, seed).records()
        theirs = [
            {"question": r["prompt"], "answer": "a", "judge": r["scores"]["judge"], "ok": r["correct"]} for r in rows
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, theirs)))
    names = "prompt=question,scores.judge=judge,correct=ok"
    assert main(["fit", "--calibration", "known.jsonl", "--names", names, "--out", "head"]) == 0
    head = AnswerHead.load("head")
    assert head.names_ == {"prompt": "question", "scores.judge": "judge", "correct": "ok"}
    for words in ("predict head new.jsonl --out a.csv", "evaluate head new.jsonl", "monitor head watch new.jsonl"):
        assert main(words.split()) == 0
    trusted(300, 1).write("ours.jsonl")  # a file with our names is read too
    assert main(["predict", "head", "ours.jsonl", "--out", "b.csv"]) == 0
    one, two = (np.genfromtxt(name, delimiter=",", names=True)["confidence"] for name in ("a.csv", "b.csv"))
    assert one.tolist() == two.tolist()
    records = [{"question": "q", "answer": "a", "judge": 5}]
    assert head.predict(Answers.from_records(records, names=head.names_)).confidence[0] == one.max()


def test_a_signal_ahead_of_the_head_is_noted():
    answers = trusted(400, 0)
    head = AnswerHead().fit(answers)
    new = trusted(400, 1)
    assert not [note for note in head.evaluate(new).notes if "smaller NLL" in note]
    worse = copy.copy(head)
    worse.recalibration_ = replace(head.recalibration_, intercept=head.recalibration_.intercept + 2)
    [note] = [note for note in worse.evaluate(new).notes if "smaller NLL" in note]
    assert note.startswith("judge alone has a smaller NLL than head, by ")
    assert note.endswith(": fit again with more checked answers like these.")


def test_few_answers_are_told_in_words_for_answers():
    """15 rows without an error have an upper bound of their risk of 1 - 0.05^(1/15) = 0.181."""
    answers = trusted(30, 0)
    text = AnswerHead().fit(answers).summary()
    least = float(text.partition("nothing is accepted below about ")[2].split()[0])
    assert least >= 1 - 0.05 ** (1 / 15)
    with pytest.warns(UserWarning, match="signals known of fewer than 10") as told:
        few = AnswerHead().fit(answers[:6], [True, False] * 3)
    assert len(told) == 1  # and none of prediction sets
    assert np.isfinite(few.metrics_["base rate"]["nll"])
