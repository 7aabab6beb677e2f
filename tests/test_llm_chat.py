"""Chat endpoints: what they answer is read, or refused in words; and questions become tables of answers."""

import json
import sys

import numpy as np
import pytest
from conftest import needs
from hypothesis import given
from hypothesis import strategies as st
from test_llm_server import JSON, ok, server  # noqa: F401  (a fixture)

from atypicality.cli import main
from atypicality.llm import Answers, OpenAICompatibleChat, PromptClassifier, Question, generate_answers, read_questions
from atypicality.llm.chat import label_masses, parse_chat
from atypicality.llm.client import ServerFaultError

pytestmark = needs("httpx")

WORDS = {"Count from one to ten in words.": "one two three", "What is 2 + 2?": "4", "Capital of Peru?": "Lima"}
TOP = [("4", -0.2), ("Four", -2.0), ("5", -4.0)]


def tokens(text):
    words = [word if i == 0 else f" {word}" for i, word in enumerate(text.split())]
    found = [{"token": word, "logprob": -0.1 * (i + 1)} for i, word in enumerate(words)]
    found[0]["top_logprobs"] = [{"token": words[0], "logprob": -0.1}, {"token": "Well", "logprob": -3.0}]
    return found


def chat(body, times=1):
    """A model of few words; what it draws depends on the seed."""
    asked = body["messages"][-1]["content"]
    text = WORDS.get(asked, "90" if "likely" in asked else "yes")
    if body["temperature"]:
        text += "" if body["seed"] % 2 else "!"
    return ok(said({"content": text}, tokens(text)))


def said(message, content, **choice):
    return {"choices": [{"message": message, "logprobs": {"content": content}} | choice]}


@pytest.fixture
def connect(server):  # noqa: F811
    server.behave = chat
    made = []

    def opened(**options):
        made.append(OpenAICompatibleChat(server.url, "tiny", **{"backoff": 0.001, "timeout": 5.0} | options))
        return made[-1]

    yield opened
    for one in made:
        one.close()


def test_questions_become_a_table_of_answers(connect):
    asked = [Question("What is 2 + 2?", ("4", "four"), id="a"), Question("Capital of Peru?", ("Quito",), id="b")]
    answers = generate_answers(connect(), asked, n_samples=3, verbalised=True)
    assert answers.answers.tolist() == ["4", "Lima"]
    assert answers.correct.tolist() == [True, False]
    assert answers.ids.tolist() == ["a", "b"]
    assert [len(some) for some in answers.samples] == [3, 3]
    assert set(answers.samples[0]) == {"4", "4!"}  # a seed for each
    assert answers.scores["verbalised"].tolist() == [0.9, 0.9]
    np.testing.assert_allclose(answers.log_probs[0], [-0.1])


def test_prompts_are_scored_where_the_server_scores_them(server, connect):  # noqa: F811
    def scoring(body, times):
        said = json.loads(chat(body)[2])
        if "prompt_logprobs" in body:
            pieces = ["<s>", "user: ", *(f"{word} " for word in body["messages"][-1]["content"].split()), "<e>"]
            entries = [{"7": {"logprob": -float(i), "decoded_token": piece}} for i, piece in enumerate(pieces)]
            said["prompt_logprobs"] = [None, *entries[1:]]
        return ok(said)

    server.behave = scoring
    answers = generate_answers(connect(), ["What is 2 + 2?"])
    np.testing.assert_allclose(answers.scores["prompt_log_likelihood"], [-(2 + 3 + 4 + 5 + 6) / 5])  # its own words


def test_labels_come_from_the_likeliest_first_tokens(server, connect):  # noqa: F811
    top = [("Pos", -0.5), (" positive", -2.0), ("The", -2.5), ("N", -3.0)]

    def choose(body, times):
        said = json.loads(chat(body)[2])
        if "Good?" in body["messages"][-1]["content"]:
            listed = [{"token": token, "logprob": value} for token, value in top]
            said["choices"][0]["logprobs"]["content"] = [listed[0] | {"top_logprobs": listed}]
        return ok(said)

    asked = []
    server.behave = lambda body, times: asked.append(body["messages"][-1]["content"]) or choose(body, times)
    outputs = PromptClassifier(connect(), "{input} Good?", ["Positive", "Negative"]).outputs(["A fine film."])
    assert not {" Positive", " Negative"} & set(asked)  # their atypicality would be that of messages
    positive, negative = np.exp(-0.5) + np.exp(-2.0), np.exp(-3.0)
    np.testing.assert_allclose(np.exp(outputs.logits[0]), [positive, negative])
    np.testing.assert_allclose(outputs.attributes["outside_mass"], [1 - positive - negative])
    assert outputs.attributes["label_rule"].tolist() == ["top tokens"]
    assert outputs.atypicality is None
    assert outputs.class_atypicality is None


def test_labels_are_not_read_from_an_answer_without_top_logprobs(server, connect):  # noqa: F811
    def mute(body, times):
        mutes = "Good?" in body["messages"][-1]["content"]
        return ok(said({"content": ""}, [])) if mutes else chat(body)

    server.behave = mute
    with pytest.raises(ServerFaultError, match="the answer to prompt 0 has no top_logprobs"):
        PromptClassifier(connect(), "{input} Good?", ["Positive", "Negative"]).outputs(["A fine film."])


def test_a_label_that_is_not_listed_gets_the_most_that_it_can_have():
    logits, outside = label_masses({"Yes": np.log(0.6), "Hm": np.log(0.3)}, ["Yes", "No", "Never"])
    np.testing.assert_allclose(np.exp(logits), [0.6, 0.1, 0.1])  # a tenth is left, less than the smallest listed
    assert outside == pytest.approx(0.4)
    logits, _ = label_masses({"N": np.log(0.5), "Yes": np.log(0.2)}, ["Yes", "No", "Never"])
    np.testing.assert_allclose(np.exp(logits), [0.2, 0.2, 0.2])  # N begins two labels, and is of neither


def shifted(content):
    content[0]["token"] = content[0]["top_logprobs"][0]["token"] = "zero"


def zeros(content):
    for token in content:
        token["logprob"] = -0.0


def positive(content):
    content[-1]["logprob"] = 0.5


def unlikely(content):
    content[0]["logprob"] = -2.0


def heavy(content):
    content[0]["top_logprobs"] *= 2


def unlisted(content):
    del content[0]["top_logprobs"]


def unknown(content):
    content[1]["logprob"] = None


def textless(content):
    content[0]["top_logprobs"][1]["token"] = None


FAULTS = {
    "log-probability of token 1 is None, not a number": unknown,
    "top_logprobs must be a list of objects with a token": textless,
    "values are shifted": shifted,
    "every log-probability is": zeros,
    "must not be positive": positive,
    "the first token is not the likeliest": unlikely,
    "sum to 1.91, more than 1": heavy,
    "no top_logprobs": unlisted,
    "no logprobs.content": list.clear,
}


@pytest.mark.parametrize("message", FAULTS)
def test_endpoints_that_cannot_be_trusted_are_refused_by_name(message, server, connect):  # noqa: F811
    def faulty(body, times):
        said = json.loads(chat(body)[2])
        FAULTS[message](said["choices"][0]["logprobs"]["content"])
        return ok(said)

    server.behave = faulty
    with pytest.raises(ServerFaultError, match=message):
        generate_answers(connect(), ["What is 2 + 2?"])


def test_the_chosen_token_counts_where_the_server_lists_only_others():
    first = tokens("4")[0] | {"bytes": [52], "top_logprobs": [{"token": "5", "logprob": -3.0}]}
    first["top_logprobs"].append({"token": "nil", "logprob": None})  # of probability 0: JSON has no infinity
    reply, _ = parse_chat(said({"content": "4"}, [first]), "2 + 2?")
    assert reply.first == {"4": -0.1, "5": -3.0}
    first["top_logprobs"] = [{"token": "5", "logprob": -0.1}]
    with pytest.raises(ValueError, match=r"first tokens sum to 1\.81, more than 1"):
        parse_chat(said({"content": "4"}, [first]), "2 + 2?")


def test_a_refusal_is_an_answer():
    answer = said({"content": None, "refusal": "I cannot."}, None, finish_reason="stop")
    answer["choices"][0]["logprobs"]["refusal"] = tokens("I cannot.")
    reply, text = parse_chat(answer, "How?")
    assert (reply.text, text) == ("I cannot.", "I cannot.")
    np.testing.assert_allclose(reply.log_probs, [-0.1, -0.2])


def test_an_empty_answer_has_no_tokens():
    reply, _ = parse_chat(said({"content": ""}, []), "Say nothing.")
    assert (reply.text, reply.log_probs.size, reply.first) == ("", 0, {})


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_the_tokens_of_a_reasoning_are_not_those_of_the_answer(name):
    euro = "€".encode()  # two tokens, neither of them a text
    pieces = [b"<think>", b"5 ", euro, b"</think>", b"\n\n", b"5 ", euro[:1], euro[1:], b"."]
    content = [
        {"token": piece.decode("utf-8", "replace"), "bytes": list(piece), "logprob": -0.1 * i}
        for i, piece in enumerate(pieces)
    ]
    reply, _ = parse_chat(said({"content": "\n\n5 €.", name: "5 €"}, content), "How much?")
    np.testing.assert_allclose(reply.log_probs, [-0.5, -0.6, -0.7, -0.8])
    with pytest.raises(ValueError, match="not those of the answer after its reasoning"):
        parse_chat(said({"content": "6 €", name: "5 €"}, content), "How much?")


@pytest.mark.parametrize(
    ("message", "reason", "told"),
    [
        ({"content": None, "tool_calls": [{"id": "a"}]}, "tool_calls", "no message.content but tool calls"),
        ({"content": None}, "content_filter", "no message.content but finish_reason 'content_filter'"),
        ({"content": "", "reasoning_content": "Hm"}, "length", "its reasoning alone: give it more max_tokens"),
        ({"content": "<think>Hm</think> 4"}, "stop", "begins with <think>: turn reasoning off"),
        ({"content": [{"type": "text", "text": "4"}]}, "stop", "no message.content but finish_reason 'stop'"),
    ],
)
def test_what_comes_in_place_of_a_text_is_named(message, reason, told):
    with pytest.raises(ValueError, match=told):
        parse_chat(said(message, tokens("4"), finish_reason=reason), "2 + 2?")


def test_a_model_that_reasons_is_tried_with_as_many_tokens_as_it_shall_have(server, connect):  # noqa: F811
    def reasoning(body, times):
        found = json.loads(chat(body)[2])
        enough = body["max_tokens"] >= 99
        found["choices"][0]["message"] |= {"reasoning_content": "Hm."} | ({} if enough else {"content": ""})
        return ok(found)

    server.behave = reasoning
    assert generate_answers(connect(), ["What is 2 + 2?"], max_tokens=99).answers.tolist() == ["4"]
    with pytest.raises(ServerFaultError, match="its reasoning alone"):
        generate_answers(connect(), ["What is 2 + 2?"])


def test_servers_that_stream_or_want_to_are_refused_at_once(server, connect):  # noqa: F811
    event = 200, {"Content-Type": "text/event-stream; charset=utf-8"}, b'data: {"choices": []}\n\n'
    only = 400, {}, b'{"error": "This model supports streaming only."}'
    for behave, told in ((event, "streams events, which was not asked for"), (only, "supports streaming only")):
        server.behave = lambda body, times, behave=behave: behave
        with pytest.raises(ServerFaultError, match=told):
            generate_answers(connect(), ["What is 2 + 2?"])
    assert sum(server.asked.values()) == 2  # neither is a passing fault


def test_answers_that_change_are_refused(server, connect):  # noqa: F811
    def moody(body, times):
        said = json.loads(chat(body)[2])
        first = said["choices"][0]["logprobs"]["content"][0]
        first["logprob"] = first["top_logprobs"][0]["logprob"] = -0.1 * times**2
        return ok(said)

    server.behave = moody
    with pytest.raises(ServerFaultError, match="sent twice, got different log-probabilities"):
        generate_answers(connect(), ["What is 2 + 2?"])


TOKENS = st.lists(st.fixed_dictionaries({"token": JSON, "logprob": JSON, "top_logprobs": JSON}) | JSON, max_size=3)
CHOICES = st.fixed_dictionaries(
    {"message": st.fixed_dictionaries({"content": JSON}) | JSON, "logprobs": st.fixed_dictionaries({"content": TOKENS})}
)


@given(answer=st.fixed_dictionaries({"choices": st.lists(CHOICES, max_size=2) | JSON, "prompt_logprobs": JSON}))
def test_any_answer_is_understood_or_refused_in_words(answer):
    try:
        reply, _ = parse_chat(answer, "What is 2 + 2?")
    except ValueError as error:
        assert str(error)
    else:
        assert (reply.log_probs <= 0).all()


def test_embeddings_are_refused(connect):
    with pytest.raises(ValueError, match="embeddings must be False: a chat endpoint has none"):
        generate_answers(connect(), ["Hi"], embeddings=True)


def test_without_httpx_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(ModuleNotFoundError, match=r"'atypicality\[llm\]'\) needs httpx: pip install httpx$"):
        OpenAICompatibleChat("http://localhost:1/v1", "m").score(["Hello"])


# questions


def test_questions_are_read_with_examples_before_them(tmp_path):
    before = [{"role": "system", "content": "Be brief."}]
    lines = [
        {"messages": [*before, {"role": "user", "content": "2 + 2?"}], "expected": ["4", "four"], "id": 7},
        {"prompt": "3 + 3?", "expected": 6},
    ]
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    first, second = read_questions(path)
    assert (first.prompt, first.expected, first.id) == ("2 + 2?", ("4", "four"), 7)
    assert first.conversation == lines[0]["messages"]
    assert second.expected == ("6",)


@pytest.mark.parametrize(
    "line", ["[]", "{", '{"prompt": 3}', '{"messages": [{"role": "user"}]}', '{"prompt": "a", "id": []}']
)
def test_a_bad_question_is_named_by_its_line(line, tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text('{"prompt": "Fine?"}\n' + line)
    with pytest.raises(ValueError, match=r"'questions\.jsonl', line 2: "):
        read_questions(path)


def test_the_command_asks_a_server_and_writes_what_the_head_reads(server, connect, tmp_path, capsys):  # noqa: F811
    questions, out = tmp_path / "questions.jsonl", tmp_path / "answers.jsonl"
    questions.write_text(json.dumps({"prompt": "What is 2 + 2?", "expected": "4"}))
    command = ["llm", "answers", str(questions), "--model", server.url, "--out", str(out), "--samples", "2"]
    assert main(command) == 2
    assert "needs --served-model" in capsys.readouterr().err
    assert main([*command, "--served-model", "tiny"]) == 0
    assert "100.0% correct" in capsys.readouterr().err
    answers = Answers.read(out)
    assert (answers.correct.tolist(), answers.samples[0]) == ([True], ("4!", "4"))
