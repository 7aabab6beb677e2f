"""Logs of an app as they are: other names of fields, answers checked in part, values missing or out of range."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
from answer_cases import answer_world
from scipy.stats import fisher_exact

import atypicality as aty
from atypicality.cli import main
from atypicality.llm import AnswerHead, Answers
from atypicality.llm.shifts import beyond_range, fisher_chance
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
    with pytest.raises(ValueError, match=r"names must be of id, prompt, .* or scores\.NAME; got 'logits'"):
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
    assert str(alarm).startswith("scores['verbalised'] missing in 100% of 400 rows, 2")
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
    assert "tests no drift of atypicality, only what answers lack" in capsys.readouterr().err


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
