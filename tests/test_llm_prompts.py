"""Templates, texts from files, and the classifier over a scorer whose every number can be worked out by hand."""

import json
import re

import numpy as np
import pytest
from conftest import needs

import atypicality as aty
from atypicality.llm import (
    AG_NEWS,
    CONTENT_FREE,
    IMDB,
    TEMPLATES,
    TREC,
    PrecomputedScorer,
    PromptClassifier,
    PromptScorer,
    Template,
    TokenScores,
    load_template,
    write_scores,
)
from atypicality.llm.texts import read_texts


class Letters:
    """Tokens are words with the space before them; each costs as many nats as it has letters."""

    def __init__(self, start=True):
        self.start, self.calls = start, []

    def score(self, prompts):
        self.calls.append(list(prompts))
        return [self._one(prompt) for prompt in prompts]

    def count_tokens(self, prompts):
        return [len(re.findall(r"\S+", prompt)) for prompt in prompts]

    def _one(self, prompt):
        found = list(re.finditer(r"\s*\S+", prompt))
        kept = found if self.start else found[1:]
        return TokenScores.checked(
            [-float(len(word[0].strip())) for word in kept],
            len(found),
            [word.end() for word in kept],
            [word[0] for word in kept],
        )


QUESTIONS = ["What is it", "Where do old ships go", "Why"]
SMALL = Template("Ask: {input} Type:", ["Place", "Reason"])


def classify(**options):
    return PromptClassifier(Letters(), SMALL, **options)


# templates


def test_the_papers_templates_are_word_for_word():
    assert TREC.fill("Why ?") == (
        "Classify the questions based on their Answer Type. Potential Answer Types are: Number, Location, Person, "
        "Description, Entity, or Abbreviation.\n\nQuestion: Why ?\n\nAnswer Type:"
    )
    assert AG_NEWS.fill("Stocks fall.").endswith("Technology.\n\n Article: Stocks fall.\n\nAnswer:")
    assert IMDB.fill("Good").startswith("The following review was written for a movie: Good.\n What is")
    assert TREC.labels == ("Number", "Location", "Person", "Description", "Entity", "Abbreviation")
    assert AG_NEWS.labels == ("World", "Sports", "Business", "Technology")
    for template in TEMPLATES.values():
        assert not template.text[-1].isspace()
        assert all(word in template.text for word in template.labels)


def test_spans_hold_the_input_whatever_it_contains():
    for text in ("plain", "{input} {x} %s \\1", "", "naïve 漢字"):
        start, end = SMALL.span(text)
        assert SMALL.fill(text)[start:end] == text


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("No hole", ValueError, "exactly once, .* holds it 0 times"),
        ("{input} {input}", ValueError, "holds it 2 times"),
        ("Say {text} {label}", ValueError, "holds it 0 times, and {text} instead"),
        ("{input} Answer: ", ValueError, "must not end with a space"),
        (3, TypeError, "must be a string"),
    ],
)
def test_bad_templates_are_named(text, error, message):
    with pytest.raises(error, match=message):
        Template(text)


def test_codes_of_data_files_become_words():
    assert [TREC.word(code) for code in ("NUM:dist", "HUM", "Person")] == ["Number", "Person", "Person"]
    assert AG_NEWS.word("4") == "Technology"
    with pytest.raises(ValueError, match=r"label 'X' is not one of the template's labels or codes \(Number"):
        TREC.word("X")


def test_templates_from_files(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("Is {input} good?\r\nAnswer:\r\n", newline="")
    assert load_template(str(path), ["Yes", "No"]).fill("it") == "Is it good?\nAnswer:"
    assert load_template("trec", ["A", "B"]).labels == ["A", "B"]
    with pytest.raises(FileNotFoundError, match=r"no template named 'trek' \(imdb, trec, agnews\)"):
        load_template("trek")


# the classifier


def test_outputs_by_hand():
    outputs = classify().outputs(QUESTIONS, labels=["Reason", "Place", "Reason"])
    assert outputs.logits.tolist() == [[-5.0, -6.0]] * 3
    # "Ask:" is 4 and "Type:" 5; the questions have 8, 17 and 3 letters in 3, 5 and 1 words
    assert outputs.atypicality.tolist() == [17.0, 26.0, 12.0]
    assert outputs.class_atypicality.tolist() == [5.0, 6.0]
    assert outputs.labels.tolist() == [1, 0, 1]
    assert outputs.class_names.tolist() == ["Place", "Reason"]
    assert outputs.ids.tolist() == [0, 1, 2]
    assert outputs.attributes["atypicality_input"].tolist() == [8.0, 17.0, 3.0]
    assert outputs.attributes["atypicality_per_token"].tolist() == [17 / 5, 26 / 7, 4.0]
    assert outputs.attributes["label_rule"].tolist() == ["first token"] * 3


@pytest.mark.parametrize("kind", ["total", "per_token", "per_byte", "input"])
def test_the_kind_of_atypicality_is_recorded(kind, tmp_path):
    classify(atypicality=kind).outputs(QUESTIONS).save(tmp_path / "out.npz")
    outputs = aty.ModelOutputs.load(tmp_path / "out.npz")
    assert outputs.attributes["atypicality_kind"].tolist() == [kind] * 3
    assert f"atypicality_{kind}" not in outputs.attributes
    other = classify(atypicality="total" if kind != "total" else "input").outputs(QUESTIONS)
    np.testing.assert_array_equal(other.attributes[f"atypicality_{kind}"], outputs.atypicality)


def test_labels_that_share_a_first_token_get_whole_likelihoods():
    template = Template("City: {input} It is", ["New York", "New Jersey", "Rome"])
    outputs = PromptClassifier(Letters(), template).outputs(["big"])
    assert outputs.logits.tolist() == [[-7.0, -9.0, -4.0]]
    assert outputs.attributes["label_rule"].tolist() == ["all tokens"]


def test_labels_glued_to_the_prompt_are_refused():
    class Glue(Letters):
        def _one(self, prompt):
            return TokenScores.checked([-1.0], 1)

    with pytest.raises(ValueError, match="joins the end of the prompt with the label ' Place'"):
        PromptClassifier(Glue(), SMALL).outputs(QUESTIONS)


def test_long_prompts_are_dropped_with_their_labels_and_named():
    with pytest.warns(UserWarning, match="1 of 3 inputs have prompts of more than 5 tokens and were dropped"):
        outputs = classify(max_tokens=5).outputs(QUESTIONS, labels=[0, 1, 0])
    assert outputs.ids.tolist() == [0, 2]
    assert outputs.labels.tolist() == [0, 0]
    with pytest.warns(UserWarning, match="dropped"):
        named = classify(max_tokens=5).outputs(QUESTIONS, ids=["a", "b", "c"])
    assert named.ids.tolist() == ["a", "c"]
    with pytest.raises(ValueError, match="max_tokens=2 leaves no input: the shortest prompt has 3 tokens"):
        classify(max_tokens=2).outputs(QUESTIONS)


def test_content_free_inputs_feed_their_calibration():
    logits = classify().content_free()
    assert logits.shape == (len(CONTENT_FREE), 2)
    calibrated = aty.ContentFreeCalibration().fit(logits).predict_proba(logits)
    np.testing.assert_allclose(calibrated, 0.5)  # every prompt says the same, so nothing is left of it


def test_without_a_start_token_class_atypicality_is_left_out():
    with pytest.warns(UserWarning, match="a label of one token has no likelihood"):
        outputs = PromptClassifier(Letters(start=False), SMALL).outputs(QUESTIONS)
    assert outputs.class_atypicality is None
    assert outputs.atypicality.tolist() == [13.0, 22.0, 8.0]


def test_prompts_that_come_one_at_a_time_do_not_score_the_labels_again():
    classifier = PromptClassifier(Letters(), SMALL)
    first, again = (classifier.outputs([question]) for question in QUESTIONS[:2])
    asked = [text for call in classifier.scorer.calls for text in call]
    assert [asked.count(f" {word}") for word in SMALL.labels] == [1] * len(SMALL.labels)
    assert first.class_atypicality.tolist() == again.class_atypicality.tolist()
    classifier.labels = ["Other", "Words"]
    assert classifier.outputs(QUESTIONS[:1]).class_atypicality.tolist() == [5.0, 5.0]


def test_a_scorer_without_places_has_no_input_part():
    class Blind(Letters):
        def _one(self, prompt):
            known = super()._one(prompt)
            return TokenScores(known.log_probs, known.n_tokens)

    outputs = PromptClassifier(Blind(), SMALL).outputs(QUESTIONS)
    assert "atypicality_input" not in outputs.attributes
    assert outputs.attributes["label_rule"].tolist() == ["all tokens"] * 3  # nor can it tell first tokens
    with pytest.raises(ValueError, match="does not say where tokens end"):
        PromptClassifier(Blind(), SMALL, atypicality="input").outputs(QUESTIONS)


def test_any_object_with_the_methods_is_a_scorer():
    assert isinstance(Letters(), PromptScorer)


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ("one text", TypeError, "inputs must be a sequence of texts; got one text"),
        ([], ValueError, "inputs must hold at least one text"),
        (["a", 3], TypeError, "row 1 is of type int"),
    ],
)
def test_bad_inputs_are_named(inputs, error, message):
    with pytest.raises(error, match=message):
        classify().outputs(inputs)


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        ("Yes", TypeError, "labels must be a sequence of words"),
        (["Yes"], ValueError, "at least two classes"),
        (["Yes", " No"], ValueError, "without spaces around them; got ' No'"),
        (["Yes", ""], ValueError, "got ''"),
        (["Yes", "Yes"], ValueError, "distinct"),
    ],
)
def test_bad_labels_are_named(labels, error, message):
    with pytest.raises(error, match=message):
        PromptClassifier(Letters(), "{input}?", labels).outputs(["a"])


def test_codes_of_the_template_are_labels_too():
    outputs = PromptClassifier(Letters(), AG_NEWS).outputs(["A", "B", "C"], labels=["3", "Sports", "1"])
    assert outputs.labels.tolist() == [2, 1, 0]
    fewer = PromptClassifier(Letters(), AG_NEWS, ["Sports", "World"]).outputs(["A", "B"], labels=["1", "2"])
    assert fewer.labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"labels": ["3", "world"]}, ValueError, r"'world' is not .* codes \(World, .*codes={'world': WORD}"),
        ({"labels": [1, 4]}, ValueError, r"labels must lie in 0 \.\. 3"),
        ({"labels": [1.0, 2.0]}, TypeError, "labels must be integer column indices"),
        ({"labels": [1]}, ValueError, "labels must have one entry per row"),
        ({"ids": [1]}, ValueError, "ids must have one entry per row"),
    ],
)
def test_labels_and_ids_are_checked_before_anything_is_scored(given, error, message):
    scorer = Letters()
    with pytest.raises(error, match=message):
        PromptClassifier(scorer, AG_NEWS).outputs(["A", "B"], **given)
    assert scorer.calls == []


def test_bad_options_are_named():
    with pytest.raises(ValueError, match="atypicality must be one of 'total'"):
        classify(atypicality="mean").outputs(QUESTIONS)
    with pytest.raises(ValueError, match="max_tokens must be at least 1"):
        classify(max_tokens=0).outputs(QUESTIONS)
    with pytest.raises(ValueError, match="labels must have one entry per row; got 1 for 3 rows"):
        classify().outputs(QUESTIONS, labels=[0])
    with pytest.raises(ValueError, match="label 'Thing' is not one of the template's"):
        classify().outputs(QUESTIONS, labels=["Place", "Place", "Thing"])


# scores from files


def all_texts():
    prompts = [SMALL.fill(question) for question in QUESTIONS]
    return [*prompts, *(f"{p} {w}" for p in prompts for w in SMALL.labels), *(f" {word}" for word in SMALL.labels)]


def test_written_scores_give_the_same_outputs(tmp_path):
    write_scores(tmp_path / "s.jsonl", all_texts(), Letters().score(all_texts()))
    stored = PromptClassifier(PrecomputedScorer(tmp_path / "s.jsonl"), SMALL).outputs(QUESTIONS)
    direct = classify().outputs(QUESTIONS)
    assert stored.logits.tolist() == direct.logits.tolist()
    assert stored.atypicality.tolist() == direct.atypicality.tolist()
    assert stored.attributes["atypicality_input"].tolist() == direct.attributes["atypicality_input"].tolist()
    with pytest.raises(ValueError, match=r"'s.jsonl' has no scores for the prompt 'Ask: New one Type:'"):
        PromptClassifier(PrecomputedScorer(tmp_path / "s.jsonl"), SMALL).outputs(["New one"])


def records():
    given = {"Place": -1.0, "Reason": -2.0}
    full = [{"prompt": SMALL.fill(q), "log_probs": [-1.0, -2.0], "label_log_probs": given} for q in QUESTIONS]
    return [*full, *({"prompt": f" {word}", "log_probs": [-3.0]} for word in SMALL.labels)]


@pytest.mark.parametrize("kind", ["jsonl", pytest.param("parquet", marks=needs("pyarrow"))])
def test_ready_made_label_scores(kind, tmp_path):
    path = tmp_path / f"s.{kind}"
    if kind == "jsonl":
        path.write_text("\n".join(map(json.dumps, records())))
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(records()), path)
    outputs = PromptClassifier(PrecomputedScorer(path), SMALL).outputs(QUESTIONS)
    assert outputs.logits.tolist() == [[-1.0, -2.0]] * 3
    assert outputs.attributes["label_rule"].tolist() == ["given"] * 3
    with pytest.raises(ValueError, match=r"no label_log_probs for 'Thing' after .*; it has: Place, Reason\."):
        PromptClassifier(PrecomputedScorer(path), SMALL, ["Place", "Thing"]).outputs(QUESTIONS)


def test_labels_that_have_no_record_of_their_own_cost_class_atypicality_only(tmp_path):
    (tmp_path / "s.jsonl").write_text("\n".join(map(json.dumps, records()[:3])))
    with pytest.warns(
        UserWarning, match="class_atypicality is left out: 's.jsonl' has no scores for the prompt ' Place'"
    ):
        outputs = PromptClassifier(PrecomputedScorer(tmp_path / "s.jsonl"), SMALL).outputs(QUESTIONS)
    assert outputs.class_atypicality is None
    assert outputs.atypicality.tolist() == [3.0] * 3


def test_a_first_token_may_be_null_as_servers_write_it(tmp_path):
    record = {"prompt": "Hi you", "log_probs": [None, -2.0], "tokens": ["Hi", " you"], "ends": [2, 6]}
    (tmp_path / "s.jsonl").write_text(json.dumps(record))
    [scores] = PrecomputedScorer(tmp_path / "s.jsonl").score(["Hi you"])
    assert (scores.log_probs.tolist(), scores.n_tokens) == ([-2.0], 2)
    assert (scores.tokens, scores.ends.tolist()) == ((" you",), [6])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", "record 1: must be an object with a text named 'prompt'"),
        ('{"prompt": "a", "logprobs": []}', "record 1: has no 'log_probs'; it has: prompt, logprobs"),
        ('{"prompt": "a", "log_probs": [-1.0, null]}', "record 1: .*token 1 has nan"),
        ('{"prompt": "a", "log_probs": [0.5]}', "record 1: log-probabilities must not be positive"),
        ('{"prompt": "a", "log_probs": ["x"]}', "record 1: could not convert"),
        ('{"prompt": "a", "log_probs": [-1], "ends": [1, 2]}', "record 1: ends must be as many"),
        ('{"prompt": "a", "log', "Expecting|Unterminated"),
    ],
)
def test_bad_records_are_named(line, message, tmp_path):
    (tmp_path / "s.jsonl").write_text(line)
    with pytest.raises(ValueError, match=message):
        PrecomputedScorer(tmp_path / "s.jsonl").score(["a"])


def test_files_that_are_not_there_or_of_no_known_kind(tmp_path):
    with pytest.raises(FileNotFoundError, match="no file at"):
        PrecomputedScorer(tmp_path / "absent.jsonl").score(["a"])
    with pytest.raises(ValueError, match=r"'s.txt' must end in .jsonl or .parquet"):
        PrecomputedScorer(tmp_path / "s.txt").score(["a"])


# texts from files


def test_texts_of_every_format(tmp_path):
    rows = [{"title": "A, b", "body": 'say "hi"', "kind": "1"}, {"title": "C", "body": "d", "kind": "2"}]
    (tmp_path / "t.csv").write_text('title,body,kind\n"A, b","say ""hi""",1\nC,d,2\n')
    (tmp_path / "t.tsv").write_text('title\tbody\tkind\nA, b\t"say ""hi"""\t1\nC\td\t2\n')
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for ending in ("csv", "tsv", "jsonl"):
        found = read_texts(tmp_path / f"t.{ending}", text=("title", "body"), label="kind")
        assert found == (['A, b say "hi"', "C d"], ["1", "2"])


def test_lines_with_their_label_in_front_in_their_encoding(tmp_path):
    (tmp_path / "trec.txt").write_bytes("NUM:dist How far ?\n\nLOC:city Où ?\n".encode("latin-1"))
    found = read_texts(tmp_path / "trec.txt", label="first-word", encoding="latin-1")
    assert found == (["How far ?", "Où ?"], ["NUM:dist", "LOC:city"])
    with pytest.raises(ValueError, match=r"'trec.txt' is not utf-8 at byte \d+; give its encoding"):
        read_texts(tmp_path / "trec.txt")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("t.csv", "a,b\n1,2\n", "'t.csv': record 1 has no 'text'; it has a, b"),
        ("t.jsonl", "[3]", "record 1 must be an object"),
        ("t.jsonl", "{", "'t.jsonl': Expecting"),
        ("t.docx", "", r"no known ending: use .jsonl, .csv, .tsv, .parquet, .txt"),
    ],
)
def test_bad_text_files_are_named(name, data, message, tmp_path):
    (tmp_path / name).write_text(data)
    with pytest.raises(ValueError, match=message):
        read_texts(tmp_path / name)
