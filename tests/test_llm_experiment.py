"""`reproduce answers`: generated answers and judgements in worlds whose effect is known."""

import json

import numpy as np
import pytest

from atypicality.cli import main
from atypicality.llm import Answers, make_questions
from atypicality.paper.answers import read_judgebench, reproduce_answers


def write_world(path, rng, n_rows=800, effect=2.0, sampled=False):
    """Answers whose chance of being correct falls with prompt atypicality, and confidences that do not know it.

    Samples agree more often with an answer that is correct.
    """
    rarity = rng.normal(size=n_rows)
    correct = rng.random(n_rows) < 1 / (1 + np.exp(-0.5 + effect * rarity))
    texts = [f"question {row}" for row in range(n_rows)]
    agree = rng.random((n_rows, 3)) < 0.3 + 0.4 * correct[:, None]
    samples = [[text if same else "no" for same in row] for text, row in zip(texts, agree, strict=True)]
    parts = {"log_probs": -rng.exponential(0.1, size=(n_rows, 1)), "scores": {"prompt_log_likelihood": -rarity}}
    Answers(texts, texts, samples=samples if sampled else None, correct=correct, **parts).write(path)


def test_an_effect_that_is_there_holds_and_one_that_is_not_does_not(tmp_path, seed, rng):
    write_world(tmp_path / "rare.jsonl", rng)
    write_world(tmp_path / "same.jsonl", rng, effect=0.0, sampled=True)
    found = reproduce_answers(tmp_path, seeds=range(4))
    verdicts = {(v.where.partition(",")[0], v.statement): v.verdict for v in found.verdicts["answers"]}
    assert len(verdicts) == 9
    assert [verdict for (task, _), verdict in verdicts.items() if task == "rare"] == ["holds"] * 4
    assert verdicts["same", "accuracy falls with prompt atypicality"] != "holds"
    beyond = "the NLL of P(correct) beyond all other signals"
    assert verdicts["same", f"atypicality lowers {beyond}"] != "holds"
    assert verdicts["same", f"samples and a verbalised score lower {beyond}"] == "holds"
    assert {(table.dataset, table.metric) for table in found.tables["answers"]} == {
        (task, metric) for task in ("rare", "same") for metric in ("ece", "accuracy")
    }


def judged(rows):
    return "\n".join(
        json.dumps({"question": "Which?", "label": label, "judgments": [one and {"decision": one} for one in said]})
        for label, *said in rows
    )


def test_judgebench_by_hand(tmp_path):
    path = tmp_path / "judge.jsonl"
    rows = [
        ("A>B", "A>B", "B>A"),
        ("A>B", "B>A", "A>B"),
        ("B>A", "A>B", "A>B"),
        ("A>B", "B>A", None),
        ("B>A", None, None),
    ]
    path.write_text(judged(rows))
    found = read_judgebench(path)
    assert len(found) == 4  # one that was never judged is no judgement
    assert found.correct[[0, 1, 3]].tolist() == [True, False, False]
    np.testing.assert_array_equal(found.scores["consistent"][:3], [1, 1, 0])
    path.write_text(judged(rows) + '\n{"label": "A>B", "judgments": []}')
    with pytest.raises(ValueError, match=r"'judge\.jsonl', line 6: not JudgeBench's layout"):
        read_judgebench(path)
    path.write_text(judged(rows[-1:]))
    with pytest.raises(ValueError, match="at least one judgement with a decision; it has none"):
        read_judgebench(path)


def test_the_command_prints_and_writes_it_and_needs_files(tmp_path, rng, seed, capsys):
    out = tmp_path / "out"
    label = np.where(rng.random(300) < 0.5, "A>B", "B>A")
    other = {"A>B": "B>A", "B>A": "A>B"}
    rows = [(one, *(s if rng.random() < 0.8 else other[s] for s in (one, other[one]))) for one in label]
    (tmp_path / "judge.jsonl").write_text(judged(rows))
    command = ["reproduce", "answers", "--seeds", "2", "--out", str(out)]
    assert main(command) == 2
    assert "answers needs --outputs" in capsys.readouterr().err
    assert main([*command, "--outputs", str(tmp_path / "judge.jsonl")]) == 0
    printed = capsys.readouterr().out
    assert "NOT TESTED: accuracy falls with prompt atypicality" in printed  # judgements have no atypicality here
    assert "judge" in (out / "answers.csv").read_text()


def test_answers_without_truth_are_refused(tmp_path):
    Answers(["a"], ["b"], log_probs=[[-1.0]]).write(tmp_path / "a.jsonl")
    with pytest.raises(ValueError, match=r"'a\.jsonl' must say which answers are correct"):
        reproduce_answers(tmp_path / "a.jsonl")


@pytest.mark.parametrize("task", ["arithmetic", "closed"])
def test_questions_are_distinct_and_as_many_as_wanted(task, seed):
    questions = make_questions(task, 900, seed)
    assert len({one.prompt for one in questions}) == 900
    assert all(one.expected and one.before for one in questions)
    if task == "arithmetic":
        for one in questions:
            assert eval(one.prompt.removeprefix("What is ").rstrip("?")) == int(one.expected[1])
    with pytest.raises(ValueError, match="task must be one of"):
        make_questions("algebra")
