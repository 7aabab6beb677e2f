"""Answers of language models: the table and its files, P(correct) from any signals, acceptance at a risk, judges."""

import json
import re
import warnings

import bundle_cases
import numpy as np
import pytest
from answer_cases import answer_world
from scipy.special import expit, logit
from scipy.stats import norm

import atypicality as aty
from atypicality.head.abstention import AbstentionRule
from atypicality.llm import AnswerHead, Answers, first_better, judgements
from atypicality.llm.signals import SignalColumns, SignalModel, signals_of
from atypicality.report.next_steps import next_steps
from atypicality.shipping.bundle import BundleError


def small(n=3, **parts):
    return Answers([f"question {row}" for row in range(n)], ["yes"] * n, **parts)


@pytest.fixture(scope="module")
def fitted():
    answers, chance = answer_world(3000, 0, embeddings=True)
    return AnswerHead().fit(answers[:1500]), answers[1500:], chance[1500:]


# The table


def test_a_table_comes_back_from_its_file(tmp_path):
    answers, _ = answer_world(50, 0, embeddings=True)
    answers.log_probs[3] = answers.samples[4] = None
    answers.prompt_embeddings[5] = np.nan
    answers.write(tmp_path / "answers.jsonl")
    again = Answers.read(tmp_path / "answers.jsonl")
    for name, part in vars(answers).items():
        ragged = name in ("log_probs", "samples")
        np.testing.assert_equal(*(list(x) if ragged else x for x in (getattr(again, name), part)), err_msg=name)
    assert list(again.records()) == list(answers.records())


def test_chat_completions_and_lists_say_the_same(tmp_path):
    chat = {"content": [{"token": "4", "logprob": -0.5, "top_logprobs": []}, {"token": ".", "logprob": -9998.0}]}
    lines = [{"logprobs": chat}, {"logprobs": [-0.5, -9998]}, {"logprobs": None}, {"logprobs": {"content": None}}]
    (tmp_path / "a.jsonl").write_text("\n\n".join(json.dumps({"prompt": "p", "answer": "a"} | line) for line in lines))
    found = Answers.read(tmp_path / "a.jsonl").log_probs
    assert [None if row is None else row.tolist() for row in found] == [[-0.5, -9998.0], [-0.5, -9998.0], None, None]


def test_a_token_that_the_server_did_not_score_makes_the_log_probs_unknown():
    with pytest.warns(UserWarning, match=r"^rows 0, 2 have a log-probability of -9999 or less"):
        answers = small(log_probs=[[-0.5, -9999.0], [-0.5, -20.0], [-1e30]])
    assert [row is None for row in answers.log_probs] == [True, False, True]


@pytest.mark.parametrize(("zeros", "tokens"), [(20, 1), (2, 1), (1, 1), (1, 2)])
def test_log_probs_that_are_all_zero_are_warned_of_from_a_tenth_of_the_answers(zeros, tokens):
    given = [[0.0] * tokens] * zeros + [[-0.1, 0.0]] * (20 - zeros) + [None] * 10
    if zeros < 2:
        small(30, log_probs=given)  # warnings are errors
        return
    with pytest.warns(UserWarning, match=rf"every log-probability is 0\.0 in {zeros} of 20 answers"):
        small(30, log_probs=given)


PLAIN = '{"prompt": "p", "answer": "a"}'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 3: is no JSON at character 2: Expecting property name"),
        ('{"prompt": "cut o', "is no JSON at character 12: Unterminated string; the line is cut off."),
        ('{"prompt" "p"}', "is no JSON at character 11: Expecting ':' delimiter."),
        ("[1]", "must be an object"),
        ('"text"', "must be an object"),
        ('{"prompt": "p"}', "'answer' is missing; the fields are prompt."),
        ('{"question": "q", "answer": "a"}', "names={'prompt': 'question'}, in a shell --names prompt=question."),
        ('{"promt": "q", "answer": "a"}', "the fields are promt, answer. Name it: names={'prompt': 'promt'}"),
        ('{"correct": true}', "needs logprobs, scores or an embedding, or prompt and answer; the fields are correct."),
        ("{}", "an answer needs logprobs, scores or an embedding, or prompt and answer."),
        ('{"prompt": null, "answer": "a"}', "'prompt' is null, and must be a text."),
        (
            '{"question": "q", "answer": "a", "human": "right", "judge": 4}',
            "prompt=question,correct=human,scores.judge=judge",
        ),
        ('{"answer": "a", "scores": {"s": 1}}', "'prompt' is missing"),
        ('{"samples": ["a"], "scores": {"s": 1}}', "'prompt' is missing"),
        ('{"prompt": 1, "answer": "a"}', "'prompt' must be a text"),
        (r'{"prompt": "\ud800", "answer": "a"}', "lone surrogates"),
        ('{"prompt": "p", "answer": "a", "logprobs": [NaN]}', "NaN is no JSON"),
        ('{"prompt": "p", "answer": "a", "logprobs": [0.5]}', "must not be positive; token 0 has 0.5"),
        ('{"prompt": "p", "answer": "a", "logprobs": [1e999]}', "finite numbers; got inf"),
        ('{"prompt": "p", "answer": "a", "logprobs": [-1e999]}', "finite numbers; got -inf"),
        ('{"prompt": "p", "answer": "a", "logprobs": "x"}', "'logprobs' must be a list"),
        ('{"prompt": "p", "answer": "a", "logprobs": {"content": [1]}}', "'logprobs.content' must be a list"),
        ('{"prompt": "p", "answer": "a", "logprobs": {"tokens": []}}', "must have 'content', or be a list of numbers"),
        (
            '{"prompt": "p", "answer": "a", "logprobs": {"content": [{}]}}',
            "'logprob' must hold finite numbers; got None",
        ),
        ('{"prompt": "p", "answer": "a", "logprobs": [1' + "0" * 400 + "]}", "too large"),
        ('{"prompt": "p", "answer": "a", "samples": [1]}', "'samples' must be a list of texts"),
        ('{"prompt": "p", "answer": "a", "scores": [1]}', "'scores' must be an object"),
        ('{"prompt": "p", "answer": "a", "scores": {"s": "x"}}', "'s' must hold finite numbers; got 'x'"),
        ('{"prompt": "p", "answer": "a", "scores": {"": 1}}', "names of 1 to 80 printable"),
        (
            '{"prompt": "p", "answer": "a", "correct": "yes"}',
            "must be true or false; got 'yes'. Of words make it before",
        ),
        ('{"prompt": "p", "answer": "a", "correct": 2}', "'correct' must be true or false; got 2."),
        ('{"prompt": "p", "answer": "a", "id": 1.5}', "'id' must be a text or a whole number"),
        ('{"prompt": "p", "answer": "a", "id": 9223372036854775808}', "of at most 63 bits"),
        ('{"prompt": "p", "answer": "a", "prompt_embedding": [true]}', "'prompt_embedding' must hold finite"),
        ('{"prompt": "p", "answer": "a", "prompt_embedding": []}', "'prompt_embedding' must not be empty"),
        ("[" * 200_000, "nested too deeply"),
        (b'{"prompt": "\xff", "answer": "a"}', "can't decode byte"),
    ],
)
def test_a_bad_line_is_named_with_its_number(tmp_path, line, message):
    data = line if isinstance(line, bytes) else line.encode()
    (tmp_path / "a.jsonl").write_bytes(PLAIN.encode() + b"\n\n" + data + b"\n")
    with pytest.raises(ValueError, match=r"^'a.jsonl', line 3: ") as caught:
        Answers.read(tmp_path / "a.jsonl")
    assert message in str(caught.value)
    assert len(str(caught.value)) < 300


def test_texts_are_not_needed_where_there_are_signals(tmp_path):
    """P(correct) is the same with and without them."""
    answers, _ = answer_world(300, 0)
    answers.samples = None
    lines = list(answers.records())
    for name, left in (("texts", ()), ("none", ("prompt", "answer", "id"))):
        kept = [{key: value for key, value in line.items() if key not in left} for line in lines]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, kept)))
    texts, none = (Answers.read(tmp_path / f"{name}.jsonl") for name in ("texts", "none"))
    assert set(none.prompts) | set(none.answers) == {""}
    found = [AnswerHead().fit(one).predict(one).confidence for one in (texts, none)]
    np.testing.assert_array_equal(*found)


def test_fields_that_are_not_read_are_named_once(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = [{"prompt": "p", "answer": "a", "logprob": [-1.0]}, {"prompt": "p", "answer": "a", "model": "m"}]
    path.write_text("\n".join(map(json.dumps, lines)))
    with pytest.warns(UserWarning, match=r"^'a\.jsonl' has fields that are not read: logprob, model\. Those") as told:
        assert len(Answers.read(path)) == 2
    assert len(told) == 1
    path.write_text(json.dumps(lines[0] | {f"x{number:02}" + "y" * 99: 1 for number in range(50)}))
    with pytest.warns(UserWarning, match=r"logprob, x00y{37}, .*, x06y{37}, \.\.\.\. Those"):
        Answers.read(path)


@pytest.mark.parametrize("right", [True, False])
def test_a_file_of_answers_of_one_kind_is_named(tmp_path, right):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join([json.dumps({"prompt": "p", "answer": "a", "correct": right})] * 20))
    with pytest.warns(UserWarning, match=rf"'a\.jsonl' has 'correct': {str(right).lower()} in all 20 rows: .* Add"):
        answers = Answers.read(path)
    answers.scores["judge"] = np.arange(20.0)
    with pytest.raises(ValueError, match=f"correct must hold right and wrong answers; all 20 are {right}"):
        AnswerHead().fit(answers)


def test_files_that_are_no_table_are_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text("\n")
    with pytest.raises(ValueError, match="at least one line"):
        Answers.read(tmp_path / "a.jsonl")
    lines = [json.dumps({"prompt": "p", "answer": "a", "scores": {f"s{row}": 1}}) for row in range(101)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    with pytest.raises(ValueError, match=r"line 101: scores must have at most 100 names"):
        Answers.read(tmp_path / "a.jsonl")
    lines = [json.dumps({"prompt": "p", "answer": "a", "answer_embedding": [1.0] * size}) for size in (2, 3)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    with pytest.raises(
        ValueError, match="line 2: 'answer_embedding' must have 2 numbers, as in a line before; it has 3"
    ):
        Answers.read(tmp_path / "a.jsonl")


def test_repeated_ids_are_named(tmp_path):
    lines = [json.dumps({"prompt": "p", "answer": "a", "id": name}) for name in ("q-1", "q-2", "q-2")]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    with pytest.warns(UserWarning, match=r"'a\.jsonl' has the same 'id' in several lines, 'q-2': no late label"):
        assert len(Answers.read(tmp_path / "a.jsonl")) == 3


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"log_probs": [[-1.0]]}, "log_probs must have one entry per row; got 1 for 3"),
        ({"log_probs": [[-1.0], [np.nan], None]}, "log_probs of row 1: .* token 0 has nan"),
        ({"log_probs": [[-1.0], [-2.0], [0.1]]}, "log_probs of row 2: .* must not be positive"),
        ({"samples": [["a"], "b", None]}, "samples of row 1: .* got one text"),
        ({"scores": {"s": [1.0, 2.0]}}, r"scores\['s'\] must have one entry per row; got 2"),
        ({"scores": {"s": [1.0, np.inf, 0.0]}}, "row 1 holds infinity"),
        ({"scores": {"s": ["a", "b", "c"]}}, "must be one number per answer"),
        ({"correct": [0, 1, 2]}, "correct must be booleans or 0 and 1; row 2 is 2"),
        ({"correct": [True]}, "correct must have one entry per row"),
        ({"ids": [1, 2]}, "ids must have one entry per row"),
        ({"prompt_embeddings": [[1.0, np.nan]] * 3}, "NaN throughout a row that has none"),
    ],
)
def test_bad_parts_are_named(parts, message):
    with pytest.raises(ValueError, match=message):
        small(**parts)


def test_rows_of_a_table_keep_everything_together():
    answers, _ = answer_world(20, 0, embeddings=True)
    some = answers[np.array([3, 7])]
    assert some.prompts.tolist() == ["question 3", "question 7"]
    assert list(some.records()) == [list(answers.records())[row] for row in (3, 7)]


# Signals


def test_signals_by_hand():
    answers = small(
        2, log_probs=[[-1.0, -0.5, -3.0], None], samples=[["Yes.", "no", " yes"], None], scores={"s": [0.5, np.nan]}
    )
    found = signals_of(answers)
    expected = {"sum": -4.5, "mean": -1.5, "min": -3.0, "first": -1.0}
    for name, value in expected.items():
        np.testing.assert_equal(found[f"log_prob_{name}"], [value, np.nan])
    np.testing.assert_equal(found["agreement"], [2 / 3, np.nan])
    np.testing.assert_equal(found["s"], [0.5, np.nan])
    for name in ("agreement", "class_scores", "s (shape)"):
        with pytest.raises(ValueError, match=re.escape(f"scores must not be called {name}")):
            signals_of(small(scores={name: [0, 1, 0]}))


def test_columns_are_standardised_and_bent_ones_add_nothing_straight(rng):
    values = -rng.exponential(size=1000)
    values[:100] = np.nan
    signal = SignalColumns.of("s", values)
    straight, bent = signal.straight(values), signal.bent(values)
    known = np.arange(1000) >= 100
    np.testing.assert_allclose(straight[known, 0].mean(), 0, atol=1e-12)
    np.testing.assert_allclose(straight[known, 0].std(), 1)
    np.testing.assert_allclose([straight[:, 1].mean(), straight[:, 1].std()], [0, 1], atol=1e-12)
    np.testing.assert_allclose(bent[known].T @ straight[known, 0], 0, atol=1e-9)
    np.testing.assert_allclose(bent[known].std(axis=0), 1)
    assert not straight[~known, 0].any()
    assert not bent[~known].any()
    assert SignalColumns.of("s", np.full(1000, 2.0)) is None
    assert SignalColumns.of("s", np.r_[np.ones(9), np.full(991, np.nan)]) is None


def test_the_model_is_the_penalised_optimum(rng):
    """First-order conditions in plain NumPy: the gradient of each part is minus one strength times its coefficients."""
    signals = dict(zip("ab", rng.normal(size=(2, 800)), strict=True))
    correct = rng.random(800) < expit(0.5 + 1.5 * signals["a"] + signals["b"] ** 2 - 1)
    model = SignalModel.fit(signals, correct)
    assert set(model.coefficients) >= {"a", "b (shape)"}
    chance = expit(model.log_odds(signals, 800))
    np.testing.assert_allclose(model.loss, -np.log(np.where(correct, chance, 1 - chance)).mean(), rtol=1e-9)
    missed = chance - (800 * correct + 1) / 802  # one right and one wrong pseudo-row, spread over all rows
    slack = np.sqrt(2 * model.certificate * 0.25) + 1e-9  # a squared gradient is at most twice gap times curvature
    assert abs(missed.mean()) < slack  # the intercept is free
    for one in model.signals:
        for name, part in ((one.name, one.straight), (one.name + " (shape)", one.bent)):
            if (found := model.coefficients.get(name)) is not None:
                gradient = part(signals[one.name]).T @ missed / 800
                strength = -gradient @ found / (found @ found)
                assert strength > 0
                np.testing.assert_allclose(gradient, -strength * found, atol=2 * slack * part(signals[one.name]).max())


def test_log_odds_of_a_log_probability_are_straight_where_platt_scaling_is_true(rng):
    """By the true chances, loses no more than its parameters cost; so does one straight in itself."""
    mean = -rng.exponential(0.7, size=3000)
    mean[::7] = np.nan
    x = np.where(np.isnan(mean), 0.0, mean)
    for name, true in (("odds", 0.5 + 1.3 * (x - np.log(-np.expm1(np.minimum(x, -1e-4))))), ("itself", 2.0 + 3 * x)):
        chance = expit(np.where(np.isnan(mean), -0.5, true))
        correct = rng.random(3000) < chance
        model = SignalModel.fit({"log_prob_mean": mean[:500]}, correct[:500])
        assert (
            name == "itself" or "log_prob_mean (odds)" in model.coefficients
        )  # a little of it may remain beside itself
        z, p = model.log_odds({"log_prob_mean": mean}, 3000)[500:], chance[500:]
        cost = np.mean(np.logaddexp(0, z) - p * z + p * np.log(p) + (1 - p) * np.log1p(-p))
        assert cost < 11 / 500, name  # half of a chi-squared with 5 degrees, over n: 10.3 once in 1,000 runs
    assert SignalColumns.of("log_prob_mean", np.zeros(50)) is None
    near = SignalColumns.of("log_prob_mean", -1e-6 * rng.random(50))  # what servers round to 0: no log-odds
    assert near.odds_scale == 0
    assert SignalModel.fit({"log_prob_mean": mean * 1e-9}, correct).certificate < 1e-6


@pytest.mark.parametrize("shift", [0.0, 1.5], ids=["even odds", "base rate 0.8"])
def test_a_useful_signal_is_found_whatever_the_base_rate(rng, shift):
    x, noise = rng.normal(size=(2, 1000))
    model = SignalModel.fit({"x": x, "noise": noise}, rng.random(1000) < expit(shift + 1.5 * x))
    assert model.evidence["x"] > 50
    assert model.evidence["noise"] < 5
    found = model.log_odds({"x": x, "noise": noise}, 1000)
    np.testing.assert_allclose(np.polyfit(x, found, 1), [1.5, shift], atol=4 * np.sqrt(10 / 1000))


def test_useless_signals_cost_next_to_nothing(seed):
    """Expected loss, by the true chances, above that of the base rate and above that of the one useful signal."""
    rng, costs = np.random.default_rng(seed), np.zeros((2, 6))
    for row, slope in enumerate((0.0, 1.2)):
        for repetition in range(6):
            x, new = rng.normal(size=(6, 1000)), rng.normal(size=(6, 4000))
            chance = expit(0.6 + slope * new[0])
            correct = rng.random(1000) < expit(0.6 + slope * x[0])
            full = SignalModel.fit({str(j): x[j] for j in range(6)}, correct)
            one = SignalModel.fit({"0": x[0]} if slope else {}, correct)
            odds = [model.log_odds({str(j): new[j] for j in range(6)}, 4000) for model in (full, one)]
            losses = [np.mean(np.logaddexp(0, z) - chance * z) for z in odds]
            costs[row, repetition] = losses[0] - losses[1]
    assert (costs.mean(axis=1) < 0.001 + 3 * costs.std(axis=1) / np.sqrt(6)).all()


def test_missing_signals_carry_information(rng):
    """Where a signal is missing the answer is wrong: the column for that says so."""
    x, gone = rng.normal(size=2000), rng.random(2000) < 0.3
    correct = rng.random(2000) < np.where(gone, 0.1, expit(1 + x))
    values = np.where(gone, np.nan, x)
    chance = expit(SignalModel.fit({"x": values}, correct).log_odds({"x": values}, 2000))
    low, high = norm.interval(1 - 1e-6, 0.1, np.sqrt(0.09 / 600))
    assert low < chance[gone].mean() < high
    assert chance[~gone].mean() > 0.5


def test_a_judge_stands_in_where_log_probs_are_missing(rng):
    """It adds nothing beside them and is all there is without: as good there as a model of these rows alone."""
    z, noise, lacking = 1.5 * rng.normal(size=4000), rng.normal(size=4000), rng.random(4000) < 0.4
    signals = {"log_prob": np.where(lacking, np.nan, z), "judge": z + 0.7 * noise}
    correct, fitted = rng.random(4000) < expit(z), np.arange(4000) < 2000
    some = {name: values[fitted] for name, values in signals.items()}
    model = SignalModel.fit(some, correct[fitted])
    alone = SignalModel.fit({"judge": some["judge"][lacking[fitted]]}, correct[fitted & lacking])
    new = {name: values[~fitted] for name, values in signals.items()}
    odds = model.log_odds(new, 2000)
    own = alone.log_odds({"judge": new["judge"]}, 2000)

    def loss(z, x):
        return np.logaddexp(0, x) - expit(z) * x

    rows = lacking[~fitted]
    assert np.mean(loss(z[~fitted], odds)[rows]) < np.mean(loss(z[~fitted], own)[rows]) + 0.003
    assert np.mean(loss(z[~fitted], odds)[~rows]) < np.mean(loss(z[~fitted], z[~fitted])[~rows]) + 0.003
    assert model.signal_evidence["judge"] > 10  # in 30 draws 13 to 85 nats, by how much of it the rows beside take


# The head


def test_a_head_beats_every_single_signal_and_is_calibrated(fitted):
    head, answers, chance = fitted
    found = head.predict(answers).confidence
    assert abs(found.mean() - chance.mean()) < 4 * np.sqrt(0.25 / 750)
    entropy = lambda p: -np.mean(chance * np.log(p) + (1 - chance) * np.log1p(-p))  # noqa: E731
    for name, values in head._signals(answers).items():
        alone = SignalModel.fit({name: values}, answers.correct)  # fitted on these very rows
        assert entropy(found) < entropy(expit(alone.log_odds({name: values}, len(answers)))), name
    assert head.evidence_["noise"] < 3


def test_each_signal_alone_has_its_auroc(fitted):
    head, answers, _ = fitted
    chosen = aty.ModelOutputs(labels=answers.correct.astype(int))._chosen(0.5, 0)
    again = AnswerHead(None).fit(answers)
    assert again.auroc_alone_.keys() == again.evidence_.keys()
    values, right = answers.scores["verbalised"][~chosen], answers.correct[~chosen]  # as the AUROC of the head is
    above = values[right][:, None] - values[~right]  # NaN in pairs without the score, which are no pairs
    pairs = (above > 0) + 0.5 * (above == 0)
    assert again.auroc_alone_["verbalised"] == pytest.approx(pairs[~np.isnan(above)].mean(), rel=1e-12)
    assert f"{again.auroc_alone_['verbalised']:8.3f}\n" in again.summary()
    assert head.auroc_alone_["prompt_atypicality"] < 0.5  # unlike prompts, wrong answers


def test_an_evaluation_has_the_loss_of_each_signal_alone(fitted, tmp_path):
    head, answers, _ = fitted
    evaluation = head.evaluate(answers, keep_samples=0)
    rows = evaluation.table("signals", metric="nll")
    assert {row["name"] for row in rows} == head.evidence_.keys()
    values = [row["value"] for row in rows]
    assert values == sorted(values)
    whole = evaluation.table("overall", method="head", metric="nll")[0]["value"]
    assert whole < values[0]
    right = answers.correct
    flat = -(right.mean() * np.log(right.mean()) + (1 - right.mean()) * np.log1p(-right.mean()))
    alone = {row["name"]: row for row in rows}
    # a share of right answers in the fitted half some standard errors off costs half of their square over the rows
    assert abs(alone["noise"]["value"] - flat) < 8 / right.size
    chance = expit(head.alone_["verbalised"].log_odds({"verbalised": answers.scores["verbalised"]}, len(answers)))
    losses = -np.log(np.where(right, chance, 1 - chance))
    assert alone["verbalised"]["value"] == pytest.approx(losses.mean(), rel=1e-12)
    assert alone["verbalised"]["standard_error"] == pytest.approx(losses.std(ddof=1) / np.sqrt(right.size), rel=1e-9)
    line = f"NLL, head: {whole:.3f}"
    assert line in str(evaluation)
    evaluation.report(tmp_path / "report.html")
    assert line in (tmp_path / "report.html").read_text("utf-8")
    assert aty.Evaluation.from_json(evaluation.to_json()) == evaluation


def test_tables_of_answers_leave_out_what_says_nothing_of_them(fitted, tmp_path):
    head, answers, _ = fitted
    said = head.predict(answers[:20], max_risk=0.2)
    kept = ["id", "confidence", "atypicality", "atypicality_quantile", "accepted"]
    assert list(head.predict(answers[:20]).columns()) == [*kept[:-1], "advice"]
    assert repr(said).startswith(f"Reliability: 20 answers, mean P(correct) {said.confidence.mean():.3f}, ")
    assert list(said[:5].columns()) == kept
    said.to_jsonl(tmp_path / "said.jsonl")
    first = json.loads((tmp_path / "said.jsonl").read_text().splitlines()[0])
    assert list(first) == [*kept, "proba"]
    assert "not shown" not in repr(said[:1])
    assert "quadrant" not in said._repr_html_()


def test_accepted_answers_and_advice(fitted):
    head, answers, chance = fitted
    said = head.predict(answers, max_risk=0.2)
    assert 0 < said.accepted.mean() < 1
    assert (1 - chance)[said.accepted].mean() < 0.2
    assert (said.confidence >= head.abstention_.threshold(0.2))[said.accepted].all()
    assert set(said.advice) <= {"trust", "trust, but rare", "ask a person"}
    assert (said.advice[~said.accepted] == "ask a person").all()
    trusted = said.advice == "trust"
    assert trusted.any()
    assert (said.confidence[trusted] >= 0.9).all()
    assert said.class_names[said.label].tolist() == ["correct"] * 1500
    np.testing.assert_array_equal(said.proba[:, 1], said.confidence)
    assert head.atypicality_ == "prompt_atypicality"
    order = np.argsort(said.atypicality)
    assert (np.diff(said.atypicality_quantile[order]) >= 0).all()
    stranger = answers[:1]
    stranger.prompt_embeddings = np.full((1, 3), np.nan)
    assert head.predict(stranger).atypicality[0] == head.usual_atypicality_


def test_more_answers_are_accepted_than_with_the_best_single_signal(seed):
    """At the same risk, on the same held-out rows, with the rule that carries the guarantee."""
    answers, chance = answer_world(6000, seed)
    head = AnswerHead().fit(answers)
    chosen = aty.ModelOutputs(labels=answers.correct.astype(int))._chosen(0.5, 0)
    signals, correct = signals_of(answers), answers.correct
    fits = {name: SignalModel.fit({name: values[chosen]}, correct[chosen]) for name, values in signals.items()}
    best = min(fits, key=lambda name: fits[name].loss)
    alone = expit(fits[best].log_odds({best: signals[best]}, 6000))
    for risk in (0.1, 0.2):
        kept = alone >= AbstentionRule.from_rows(alone[~chosen], correct[~chosen]).threshold(risk)
        accepted = head.predict(answers, max_risk=risk).accepted
        assert accepted.mean() > kept.mean() > 0
        assert (1 - chance)[accepted].mean() < risk


def test_the_guarantee_is_of_rows_that_fitted_nothing(fitted):
    head, _, _ = fitted
    assert head.sizes_ == {"recalibration": 750, "thresholds": 750}
    assert head.abstention_.kept[-1] == head.reference_.n_rows == 750
    assert sum(row["count"] for row in head.advice_.values()) == 750


def test_evaluation_is_of_the_answers_given(fitted, tmp_path):
    head, answers, _ = fitted
    evaluation = head.evaluate(answers)
    assert evaluation.methods == ("token probability", "head")
    overall = {row["metric"]: row["value"] for row in evaluation.table("overall", method="head")}
    confidence = head.predict(answers).confidence
    assert overall["accuracy"] == pytest.approx(answers.correct.mean())  # not of the guess that an answer is wrong
    assert overall["nll"] == pytest.approx(-np.mean(np.log(np.where(answers.correct, confidence, 1 - confidence))))
    assert overall["confidence_auroc"] == pytest.approx(aty.metrics.signal.auroc(confidence, answers.correct))
    groups = evaluation.table("atypicality_groups", method="head", metric="accuracy")
    assert sum(row["count"] * row["value"] for row in groups) == pytest.approx(answers.correct.sum())
    evaluation.report(tmp_path / "report.html", examples=answers.texts(), head=head)
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "question 1600" in page
    assert "Chance that an answer of one language model is correct" in page


def test_an_evaluation_of_answers_has_no_classes_and_says_what_is_accepted(fitted):
    head, answers, _ = fitted
    evaluation = head.evaluate(answers, max_risk=0.2)
    accepted, wrong = head.predict(answers, max_risk=0.2).accepted, ~answers.correct
    overall = {row["metric"]: row for row in evaluation.table("overall", method="head")}
    assert overall["accepted_share"]["value"] == accepted.mean()
    assert overall["accepted_risk"]["value"] == wrong[accepted].mean()
    assert overall["accepted_risk"]["count"] == accepted.sum()
    told = evaluation.table("predictions", method="head")
    assert [row["accepted"] for row in told] == accepted.tolist()
    assert f"Accepted at max_risk=0.2, head: {accepted.mean():.1%}" in str(evaluation)
    assert "The others are for a person." in str(evaluation)
    assert str(evaluation).startswith("Evaluation of 1500 answers (")
    assert not {"coverage", "set_size", "classwise_ece"} & set(evaluation.tables["overall"]["metric"])
    assert not any(evaluation.tables[name]["value"] for name in ("classes", "class_groups", "set_sizes"))
    assert aty.Evaluation.from_json(evaluation.to_json()) == evaluation
    with pytest.raises(ValueError, match="max_risk needs a head among the methods"):
        aty.evaluate("uncalibrated", head.outputs(answers), max_risk=0.2)


def test_more_errors_than_allowed_are_not_recommended(fitted):
    head, answers, _ = fitted
    worse = answers[:400]
    told = {}
    for correct in (worse.correct, worse.correct & (np.arange(400) % 3 > 0)):
        evaluation = head.evaluate(worse, correct, max_risk=0.2)
        [risk] = evaluation.table("overall", metric="accepted_risk")
        step = "".join(part if isinstance(part, str) else part.text for part in next_steps(evaluation, "head")[0])
        told[risk["low"] > 0.2] = (str(evaluation), step)
    (printed, step), (fine, use) = told[True], told[False]
    assert "more than max_risk allows: it happens to one head in 20" in printed
    assert "more than allowed. That happens to one head in 20, or these answers differ" in step
    assert "more than" not in fine
    assert use.startswith("Use the ")


def test_notes_are_for_answers():
    answers, _ = answer_world(400, 0)
    del answers.scores["prompt_log_likelihood"]
    evaluation = AnswerHead().fit(answers[:200]).evaluate(answers[200:])
    assert evaluation.notes == (
        "no atypicality is known, so nothing is shown by it; fit with embeddings of the prompts, or with the score "
        "prompt_log_likelihood.",
    )


@pytest.mark.parametrize("known", [1, 700, 1499])
def test_token_probability_is_measured_on_the_answers_that_have_it(fitted, known):
    head, answers, _ = fitted
    answers, chosen = answers[:], np.random.default_rng(0).permutation(1500) < known
    answers.log_probs = answers.log_probs.copy()
    answers.log_probs[~chosen] = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the head says that a signal is missing
        evaluation = head.evaluate(answers, max_risk=0.2)
        if known == 1:  # where a table of one row could be left over
            assert head.evaluate(answers, keep_samples=0).tables["predictions"]["row"] == ()
    assert evaluation.methods == ("token probability", "head")
    rows = {row["method"]: row for row in evaluation.table("overall", metric="ece")}
    assert [row["count"] for row in rows.values()] == [known, 1500]
    mean = np.array([np.exp(row.mean()) for row in answers.log_probs[chosen]])
    assert rows["token probability"]["value"] == aty.metrics.ece(confidence=mean, correct=answers.correct[chosen])
    told = {row["row"]: row["confidence"] for row in evaluation.table("predictions", method="token probability")}
    assert list(told) == np.flatnonzero(chosen).tolist()
    np.testing.assert_allclose(list(told.values()), mean)
    assert f"measured on the {known:,} of 1,500 answers that have log-probabilities" in evaluation.notes[-1]


def test_a_monitor_watches_answers(fitted):
    head, answers, _ = fitted
    monitor = aty.Monitor(head)
    assert monitor.add(head.outputs(answers), at=0) == []
    assert (monitor.n_rows, monitor.n_labelled) == (1500, 1500)
    worse = answers[:500]
    worse.correct = np.zeros(500, bool)
    assert {alarm.stream for alarm in monitor.add(head.outputs(worse), at=1)} == {"error"}


def test_errors_of_accepted_answers_are_alarms_against_the_risk(fitted):
    head, answers, _ = fitted
    said = head.predict(answers, max_risk=0.2)
    right = answers.correct.astype(int)
    monitor = aty.Monitor(head, max_risk=0.2)
    assert monitor.add_labels(said, right, at=0) == []
    kept = np.flatnonzero(said.accepted)
    wrong = right.copy()
    wrong[kept[: int(0.4 * kept.size)]] = 0
    [alarm] = [one for one in monitor.add_labels(said, wrong, at=86400) if one.stream == "risk"]
    n_wrong = np.count_nonzero(wrong[kept] == 0)
    assert (alarm.n_rows, alarm.share, alarm.reference_high) == (kept.size, n_wrong / kept.size, 0.2)
    assert "labelled rows since 1970-01-02 that are accepted are wrong, at most 20% allowed" in str(alarm)
    wrong_of_both = (np.count_nonzero(right[kept] == 0) + n_wrong) / (2 * kept.size)
    assert f"with a label {wrong_of_both:.1%} are wrong" in monitor.summary()
    with pytest.raises(ValueError, match=r"predict them with max_risk=0\.2"):
        monitor.add_labels(head.predict(answers), right, at=2 * 86400)
    with pytest.raises(ValueError, match=r"differs in max_risk"):
        monitor.merge(aty.Monitor(head, max_risk=0.1))


def test_a_bundle_is_the_same_head(fitted, tmp_path):
    head, answers, _ = fitted
    again = AnswerHead.load(tmp_path, sha256=head.save(tmp_path))
    assert bundle_cases.difference(head, again) is None
    np.testing.assert_array_equal(again.predict(answers).proba, head.predict(answers).proba)
    assert again.summary() == head.summary()
    with pytest.raises(BundleError, match=r"must be of class ReliabilityHead; .*llm\.AnswerHead\.load"):
        aty.load(tmp_path)
    neighbours = AnswerHead(aty.NeighborAtypicality(3), atypicality="answer_atypicality", alpha=0.2, random_state=4)
    answers.answer_embeddings = answers.prompt_embeddings
    neighbours.fit(answers, train=answers[:200]).save(tmp_path / "other")
    found = AnswerHead.load(tmp_path / "other")
    assert found.get_params(deep=False).keys() == neighbours.get_params(deep=False).keys()
    assert bundle_cases.difference(neighbours, found) is None


@pytest.mark.parametrize("mutation", [bundle_cases.blind, bundle_cases.sealed], ids=["blind", "sealed"])
def test_mutated_bundles_are_refused_or_heads(fitted, tmp_path, rng, mutation):
    head, answers, _ = fitted
    head.save(tmp_path / "one")
    AnswerHead(density=None).fit(answers[:400]).save(tmp_path / "two")
    saved, refused = bundle_cases.Saved.of(tmp_path / "one", tmp_path / "two"), 0
    for _ in range(40):
        mutation(saved, tmp_path / "mutated", rng)
        try:
            found = AnswerHead.load(tmp_path / "mutated")
        except BundleError:
            refused += 1
            continue
        if mutation is bundle_cases.blind:
            assert bundle_cases.difference(head, found) is None
        try:
            assert bundle_cases.quiet(found.predict, answers[:20], max_risk=0.1).proba.shape == (20, 2)
        except ValueError as error:
            assert str(error)
    assert refused > 10


def test_a_bundle_without_the_evidence_of_a_signal_is_refused(fitted, tmp_path):
    fitted[0].save(tmp_path / "one")
    saved = bundle_cases.Saved.of(tmp_path / "one", tmp_path / "one")
    head = json.loads(saved.text)["head"]
    model = head["fitted"]["recalibration_"]["fitted"]
    assert model["coefficients"]
    name = next(iter(model["coefficients"]))
    del model["evidence"][name]
    saved.write_sealed(tmp_path / "other", head, saved.data)
    with pytest.raises(BundleError, match=f"{name} must have its evidence"):
        AnswerHead.load(tmp_path / "other")


def test_what_cannot_be_fitted_or_judged_is_refused(fitted):
    head, answers, _ = fitted
    with pytest.raises(ValueError, match="correct must be given, or be in the answers"):
        AnswerHead().fit(small(scores={"s": [1, 2, 3]}))
    for value in (True, False):
        with pytest.raises(ValueError, match=f"right and wrong answers; all 3 are {value}"):
            AnswerHead().fit(small(scores={"s": [1, 2, 3]}, correct=[value] * 3))
    with pytest.raises(ValueError, match=r"at least one signal.*texts alone"):
        AnswerHead().fit(small(correct=[True, False, True]))
    with pytest.raises(TypeError, match="answers must be Answers; got list"):
        AnswerHead().fit([])
    with pytest.raises(ValueError, match="correct must have one entry per row"):
        AnswerHead().fit(small(scores={"s": [1, 2, 3]}), [True, False])
    with pytest.raises(ValueError, match="atypicality='prompt_atypicality' must be a signal"):
        AnswerHead(atypicality="prompt_atypicality").fit(answer_world(100, 0)[0])
    with pytest.raises(ValueError, match="train must have prompt_embeddings"):
        AnswerHead().fit(answers, train=answer_world(10, 0)[0])
    with pytest.raises(ValueError, match="density, where it is text, must be one of 'auto'"):
        AnswerHead("gauss").fit(answers)
    with pytest.raises(ValueError, match="max_risk must be a finite number"):
        head.predict(answers, max_risk=0.0)


def test_a_row_without_a_signal_is_judged_alone_as_among_others(fitted, tmp_path):
    head, answers, _ = fitted
    answers = answers[np.arange(10)]
    answers.log_probs[4] = None
    with pytest.warns(UserWarning, match=r"logprobs is missing in 1 row, .* the mean is used as log_prob_\w+"):
        among = head.predict(answers).confidence[4]
    answers[4:5].write(tmp_path / "one.jsonl")
    with pytest.warns(UserWarning, match="logprobs is missing in 1 row,"):
        [alone] = head.predict(Answers.read(tmp_path / "one.jsonl")).confidence
    assert alone == among


def test_what_is_missing_is_named_by_its_field(rng):
    x, judge = rng.normal(size=(2, 400))
    model = SignalModel.fit({"prompt_atypicality": x, "judge": judge}, rng.random(400) < expit(2 * x + 2 * judge))
    with pytest.warns(UserWarning, match="is missing in 2 rows") as told:
        model.log_odds({}, 2)
    assert [str(one.message).partition(" is missing in 2 rows")[0] for one in told] == [
        "prompt_embedding",
        "scores['judge']",
    ]


def test_scores_of_no_meaning_to_the_head_are_left_out_with_a_warning(fitted):
    head, answers, _ = fitted
    more = answers[np.arange(5)]
    more.scores["new"] = np.arange(5.0)
    with pytest.warns(UserWarning, match=r"are not used: new\. It was fitted with verbalised, noise, prompt_log"):
        found = head.predict(more).confidence
    np.testing.assert_array_equal(found, head.predict(answers[np.arange(5)]).confidence)


def test_what_says_too_little_is_no_signal(rng):
    correct, points = rng.random(100) < 0.6, np.full((100, 4), np.nan)
    points[:3] = rng.normal(size=(3, 4))
    scores = {"constant": np.ones(100), "gone": np.full(100, np.nan), "prompt_log_likelihood": np.full(100, np.nan)}
    answers = small(100, prompt_embeddings=points, scores=scores, correct=correct, samples=[["no"]] * 100)
    with pytest.warns(UserWarning, match="left out") as told:
        head = AnswerHead().fit(answers)
    few, same = (str(one.message) for one in told)
    assert few.endswith("of the answers that fit P(correct) are left out: gone, prompt_log_likelihood.")
    assert "the same in all or nearly all rows are left out: agreement (0), constant (1). Samples are compared" in same
    assert head.evidence_ == {}
    assert head.atypicality_ is None
    assert head.predict(answers).atypicality is None


def test_signals_of_any_size_say_the_same(rng):
    x = rng.normal(size=500)
    correct = rng.random(500) < expit(2 * x)
    odds = [SignalModel.fit({"x": x * size}, correct).log_odds({"x": x * size}, 500) for size in (1.0, 1e200, 1e-200)]
    np.testing.assert_allclose(odds[1:], [odds[0]] * 2, rtol=1e-6, atol=1e-6)


def test_few_rows_give_the_base_rate():
    answers, _ = answer_world(18, 1)
    with pytest.warns(UserWarning, match="signals known of fewer than 10 of the answers"):
        head = AnswerHead().fit(answers)
    assert head.recalibration_.signals == []  # nine rows fit, and a signal needs ten
    assert head.metrics_["base rate"]["nll"] == pytest.approx(head.metrics_["head"]["nll"], rel=1e-6)
    np.testing.assert_allclose(head.predict(answers).confidence, base_rate(answers), rtol=1e-6)


def test_of_signals_that_chance_supports_few_rows_keep_a_small_part():
    answers, _ = answer_world(40, 1, useful=False)
    found = AnswerHead().fit(answers).predict(answers).confidence
    # 22 / 600 are kept: of log-odds of 3, a quarter of that in probability
    np.testing.assert_allclose(found, base_rate(answers), atol=3 * 22 / 600 / 4)


def base_rate(answers):
    chosen = aty.ModelOutputs(labels=answers.correct.astype(int))._chosen(0.5, 0)
    return (answers.correct[chosen].sum() + 1) / (chosen.sum() + 2)  # one right and one wrong pseudo-row


# Pairwise judges


def test_judgements_by_hand():
    judged = judgements(["p"] * 4, [0.9, 0.9, 0.2, np.nan], [0.2, 0.8, np.nan, 0.3], better=[True, False, False, True])
    margin = [(logit(0.9) - logit(0.2)) / 2, (logit(0.9) - logit(0.8)) / 2, logit(0.2), -logit(0.3)]
    np.testing.assert_allclose(judged.scores["judge_margin"], np.abs(margin))
    np.testing.assert_allclose(
        judged.scores["position_bias"],
        [abs(logit(0.9) + logit(0.2)) / 2, (logit(0.9) + logit(0.8)) / 2, np.nan, np.nan],
    )
    np.testing.assert_equal(judged.scores["consistent"], [1, 0, np.nan, np.nan])
    assert judged.answers.tolist() == ["first", "first", "second", "first"]
    assert judged.correct.tolist() == [True, False, True, True]


def test_exchanging_the_candidates_turns_the_chance_around(rng):
    odds, bias = rng.normal(size=(2, 1000))
    better = rng.random(1000) < expit(3 * odds)
    forward, backward = expit(odds + bias), expit(-odds + bias)
    judged, turned = (
        judgements(["p"] * 1000, forward, backward, better=better),
        judgements(["p"] * 1000, backward, forward),
    )
    head = AnswerHead().fit(judged)
    chance = first_better(judged, head.predict(judged))
    np.testing.assert_allclose(first_better(turned, head.predict(turned)), 1 - chance, rtol=1e-12)
    assert abs(np.mean(chance - better)) < 4 * np.sqrt(0.25 / 1000)
    assert np.mean(chance[better]) > np.mean(chance[~better]) + 0.2


@pytest.mark.parametrize("hard", [False, True], ids=["probabilities", "votes"])
def test_backward_of_the_wrong_candidate_is_noticed_and_a_preference_for_a_position_is_not(rng, hard):
    odds, prompts = rng.normal(size=400), ["p"] * 400
    for bias in (0.0, 0.5) if hard else (0.0, 1.0, -3.0, 6.0):  # the last: always the one shown first
        forward, backward = expit(odds + bias), expit(-odds + bias)
        if hard:
            forward, backward = forward > 0.5, backward > 0.5
        judgements(prompts, forward, backward)  # warnings are errors
        with pytest.warns(UserWarning, match=r"contradict each other: .* give 1 - backward"):
            judgements(prompts, forward, 1 - backward)
    for _ in range(20):
        judgements(prompts, rng.random(400), rng.random(400))  # a judge that guesses


def test_backward_of_the_wrong_candidate_is_noticed_by_what_people_say(rng):
    quality, position = rng.normal(size=(2, 2000))  # alike in size: the orders do not correlate, turned round or not
    prompts, better = ["p"] * 2000, rng.random(2000) < expit(3 * quality)
    forward, backward = expit(quality + position), expit(-quality + position)
    judgements(prompts, forward, backward, better=better)  # warnings are errors
    with pytest.warns(UserWarning, match=r"turned round: .* the 2,000 judgements are right, and with 1 - backward 8"):
        judgements(prompts, forward, 1 - backward, better=better)
    for _ in range(20):
        judgements(prompts, rng.random(2000), rng.random(2000), better=better)  # a judge that guesses


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"forward": [0.5]}, "forward must have one entry per row; got 1 for 2"),
        ({"forward": [0.5, 1.5]}, r"forward must be probabilities, in \[0, 1\], or NaN; row 1"),
        ({"forward": [0.5, np.nan]}, "forward or backward must be given of every pair; row 1 has neither"),
        ({"forward": [[0.5, 0.5]]}, "one probability per pair"),
        ({"forward": [0.5, 0.5], "scores": {"consistent": [1, 1]}}, "scores must not be called consistent"),
        ({"forward": [0.5, 0.5], "better": [1, 2]}, "correct must be booleans"),
    ],
)
def test_bad_judgements_are_named(given, message):
    with pytest.raises(ValueError, match=message):
        judgements(["p"] * 2, **given)


def test_chances_of_other_answers_are_refused(fitted):
    head, answers, _ = fitted
    with pytest.raises(ValueError, match="judged must be what judgements made"):
        first_better(answers, head.predict(answers))
