"""Causal language models as scorers: small random models against a plain float64 reference, in any batch and order."""

import numpy as np
import pytest
from conftest import needs

from atypicality.integrations.replies import N_FIRST
from atypicality.llm import Decoding

pytestmark = needs("torch", "transformers")

WORDS = ["the", "a", "cat", "dog", "sat", "ran", "on", "under", "mat", "tree", "and", "then", "slept", "quietly"]
WORDS += ["New", "York", "Jersey", "Number", "Location", "is", "it", "in"]


def tokenizer(start="bos"):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator([f" {word}" for word in WORDS] * 3, trainer)
    named = {"bos": {"bos_token": "<s>"}, "eos": {"eos_token": "</s>"}, "none": {}}[start]
    return PreTrainedTokenizerFast(tokenizer_object=raw, **named)


def model(family, seed, **options):
    import torch
    import transformers

    torch.manual_seed(seed)
    sizes = {
        "llama": dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4),
        "gpt2": dict(n_embd=32, n_layer=2, n_head=4),
        "gemma2": dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, head_dim=8),
    }[family]
    context = {"gpt2": {"n_positions": 128}}.get(family, {"max_position_embeddings": 128, "num_key_value_heads": 2})
    config = transformers.AutoConfig.for_model(family, vocab_size=320, initializer_range=0.3, **sizes, **context)
    for name, value in options.items():
        setattr(config, name, value)
    return transformers.AutoModelForCausalLM.from_config(config)


def scorer(family, seed, start="bos", batch_tokens=64, **options):
    from atypicality.llm import TransformersScorer

    return TransformersScorer(model(family, seed, **options), tokenizer(start), batch_tokens=batch_tokens)


def sentences(rng, count, longest=30):
    return [" ".join(rng.choice(WORDS, rng.integers(1, longest))) for _ in range(count)]


def reference(scorer, ids):
    """Log-probabilities of every next token, one sequence without padding, in float64 throughout."""
    import torch

    double = type(scorer.model)(scorer.model.config).double().eval()
    double.load_state_dict(scorer.model.state_dict())
    with torch.inference_mode():
        return double(torch.tensor([ids])).logits[0].log_softmax(-1).numpy()


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])  # gemma2 bends its logits: body and head disagree
def test_scores_are_those_of_a_plain_pass_in_float64(family, seed, rng):
    made = scorer(family, seed)
    text = sentences(rng, 1)[0]
    ids = [0, *made.tokenizer(text, add_special_tokens=False).input_ids]
    log_probs = reference(made, ids)[np.arange(len(ids) - 1), ids[1:]]
    found = made.score([text])[0]
    np.testing.assert_allclose(found.log_probs, log_probs, rtol=2e-5, atol=2e-5)  # float32 through two layers
    assert found.n_tokens == len(ids) == made.count_tokens([text])[0]
    assert found.log_probs.dtype == np.float64


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("beginning", ["", "then it is in New York and the dog ran under the tree and "])
def test_a_prompt_scores_the_same_alone_in_any_batch_and_in_any_order(family, beginning, seed, rng):
    texts = [beginning + text for text in sentences(rng, 40)]
    made = scorer(family, seed)
    alone = np.array([made.score([text])[0].log_probs.sum() for text in texts])
    order = rng.permutation(len(texts))
    for batch_tokens in (1, 50, 400, 10_000):
        made.batch_tokens = batch_tokens
        together = np.array([score.log_probs.sum() for score in made.score(texts)])
        shuffled = np.array([score.log_probs.sum() for score in made.score([texts[i] for i in order])])
        np.testing.assert_allclose(together, alone, rtol=1e-5)
        np.testing.assert_allclose(shuffled, alone[order], rtol=1e-5)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_label_logits_are_next_token_log_probabilities(family, seed, rng):
    made = scorer(family, seed)
    prompts = [f"{text} it is" for text in sentences(rng, 9)]
    found = made.score_labels(prompts, [" Number", " cat"])
    assert found.rule == "first token"
    ids = [0, *made.tokenizer(prompts[3], add_special_tokens=False).input_ids]
    firsts = [made.tokenizer(label, add_special_tokens=False).input_ids[0] for label in (" Number", " cat")]
    np.testing.assert_allclose(found.logits[3], reference(made, ids)[-1, firsts], rtol=2e-5, atol=2e-5)
    for own, plain in zip(found.prompts, made.score(prompts), strict=True):
        np.testing.assert_allclose(own.log_probs, plain.log_probs, rtol=1e-5, atol=1e-6)


def test_labels_that_share_a_first_token_get_whole_likelihoods(seed, rng):
    from atypicality.llm.scorers import joined_label_scores

    made = scorer("llama", seed)
    prompts = [f"{text} it is in" for text in sentences(rng, 5)]
    labels = [" New York", " New Jersey", " cat"]
    found = made.score_labels(prompts, labels)
    assert found.rule == "all tokens"
    by_texts = joined_label_scores(made, prompts, labels)
    assert by_texts.rule == "all tokens"
    np.testing.assert_allclose(found.logits, by_texts.logits, rtol=1e-5)
    np.testing.assert_allclose(
        [score.log_probs.sum() for score in found.prompts],
        [score.log_probs.sum() for score in made.score(prompts)],
        rtol=1e-5,
    )


@pytest.mark.parametrize(("start", "unscored"), [("bos", 0), ("eos", 0), ("none", 1)])
def test_first_token_is_scored_after_a_start_token_and_left_out_without_one(start, unscored, seed):
    made = scorer("gpt2", seed, start)
    tokens = made.tokenizer("the cat sat", add_special_tokens=False).input_ids
    found = made.score(["the cat sat"])[0]
    assert found.log_probs.size == len(tokens) - unscored
    assert found.ends is not None
    assert found.ends.size == found.log_probs.size
    assert found.ends[-1] == len("the cat sat")


def test_an_empty_prompt_needs_a_start_token(seed):
    assert scorer("gpt2", seed).score([""])[0].log_probs.size == 0
    with pytest.raises(ValueError, match="prompt 0 has no tokens and the tokenizer no start token"):
        scorer("gpt2", seed, "none").score([""])


def test_nothing_to_score_is_nothing(seed):
    assert scorer("gpt2", seed).score([]) == []


def test_prompts_beyond_the_context_are_named(seed):
    with pytest.raises(ValueError, match=r"prompt 1 has \d+ tokens and the model takes 128 .* max_tokens=128"):
        scorer("llama", seed).score(["the cat", "the cat sat " * 60])


def test_labels_that_melt_into_the_prompt_are_refused(seed):
    with pytest.raises(ValueError, match=r"joins the end of the prompt with the label 'r'"):
        scorer("llama", seed).score_labels(["it is Numbe"], ["r", "x"])


def test_logits_of_a_whole_batch_never_exist(seed, rng, monkeypatch):
    from atypicality.integrations import transformers as adapter

    monkeypatch.setattr(adapter, "CPU_LOGITS", 320 * 7)
    made = scorer("llama", seed, batch_tokens=2000)
    head = made.model.get_output_embeddings()
    heights = []
    head.register_forward_hook(lambda module, inputs, output: heights.append(output.shape[0]))
    made.score(sentences(rng, 30))
    assert max(heights) <= 7  # the probe's single row of three positions comes first and has its own shape


@pytest.mark.parametrize(("family", "at_most"), [("llama", 0.5), ("gpt2", 0.5), ("gemma2", 1.1)])
def test_what_prompts_share_is_run_once(family, at_most, seed, rng):
    made = scorer(family, seed, batch_tokens=40)
    beginning = "then it is in New York and the dog ran under the tree and "
    texts = [beginning + text for text in sentences(rng, 30, longest=4)]
    seen = []
    made.model.get_input_embeddings().register_forward_pre_hook(lambda module, args: seen.append(args[0].numel()))
    made.score(texts)
    assert sum(seen) < at_most * sum(made.count_tokens(texts))  # gemma2's logits are bent: it runs whole


def test_the_model_keeps_its_mode(seed):
    made = scorer("gpt2", seed)
    made.model.train()
    first, second = made.score(["the cat sat on the mat"] * 2)
    np.testing.assert_allclose(first.log_probs, second.log_probs)  # no dropout while scoring
    assert made.model.training


def test_saved_models_load_without_running_their_code(seed, tmp_path):
    from atypicality.llm import TransformersScorer

    made = scorer("llama", seed)
    made.model.save_pretrained(tmp_path)
    made.tokenizer.save_pretrained(tmp_path)
    loaded = TransformersScorer.from_pretrained(tmp_path, device="cpu")
    np.testing.assert_allclose(loaded.score(["the dog ran"])[0].log_probs, made.score(["the dog ran"])[0].log_probs)
    config = tmp_path / "config.json"
    hostile = '{"auto_map": {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}, "model_type": "evil"}'
    config.write_text(hostile)
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(ValueError, match=r"trust_remote_code|custom code"):
        TransformersScorer.from_pretrained(tmp_path, device="cpu")
    assert not (tmp_path / "ran").exists()


def test_a_pickle_in_place_of_weights_is_not_run(seed, tmp_path):
    import pickle
    import shutil

    from atypicality.llm import TransformersScorer

    class Hostile:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    made = scorer("llama", seed)
    made.model.save_pretrained(tmp_path / "model")
    made.tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    (tmp_path / "model" / "pytorch_model.bin").write_bytes(pickle.dumps({"x": Hostile()}))
    with pytest.raises(Exception, match=r"(?i)weights.only|unsupported|unpickl"):
        TransformersScorer.from_pretrained(tmp_path / "model", device="cpu")
    assert not (tmp_path / "ran").exists()
    shutil.rmtree(tmp_path / "model")


def test_missing_gguf_files_are_named(tmp_path):
    from atypicality.llm import TransformersScorer

    with pytest.raises(FileNotFoundError, match=r"no GGUF file at .*absent\.gguf"):
        TransformersScorer.from_pretrained(tmp_path / "absent.gguf")


def test_no_bar_while_a_gguf_file_is_read_in_a_pipe(capfd):
    import transformers
    from transformers import modeling_gguf_pytorch_utils as reader

    from atypicality.integrations.transformers import _quiet_in_a_pipe

    own = reader.tqdm
    with _quiet_in_a_pipe(transformers):
        assert list(reader.tqdm([1, 2], desc="Converting")) == [1, 2]
    assert capfd.readouterr().err == ""
    assert reader.tqdm is own


def asked(texts):
    return [[{"role": "system", "content": "it is in New York"}, {"role": "user", "content": text}] for text in texts]


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
def test_an_answer_is_the_likeliest_of_a_plain_pass_in_float64(family, seed, rng):
    made = scorer(family, seed)
    text = sentences(rng, 1, longest=10)[0]
    [reply] = made.reply(asked([text]), Decoding(4))
    prompt = [0, *made.tokenizer(f"it is in New York\n\n{text}", add_special_tokens=False).input_ids]
    ids, values = list(prompt), []
    for _ in range(4):
        following = reference(made, ids)[-1]
        ids.append(int(following.argmax()))
        values.append(following.max())
    assert reply.text == made.tokenizer.decode(ids[len(prompt) :], skip_special_tokens=True).strip()
    np.testing.assert_allclose(reply.log_probs, values, rtol=2e-5, atol=2e-5)  # float32 through two layers
    likeliest = np.argsort(first := reference(made, prompt)[-1])[: -N_FIRST - 1 : -1]
    texts = [made.tokenizer.decode([token]) for token in likeliest]  # several tokens may have the same
    assert set(reply.first) == set(texts)
    for said, value in reply.first.items():
        same = [first[token] for token, text in zip(likeliest, texts, strict=True) if text == said]
        assert value == pytest.approx(np.logaddexp.reduce(same), abs=2e-5)
    own = made.score([f"it is in New York\n\n{text}"])[0]
    kept = own.inside((len("it is in New York\n\n"), len("it is in New York\n\n") + len(text)))
    np.testing.assert_allclose(reply.prompt.log_probs, own.log_probs[kept], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_answers_and_samples_are_the_same_in_any_batch(family, seed, rng):
    made = scorer(family, seed)
    texts = sentences(rng, 12, longest=10)
    how = Decoding(5, n_samples=2, embeddings=True, random_state=seed)
    found = []
    for batch_tokens in (1, 60, 10_000):
        made.batch_tokens = batch_tokens
        found.append(made.reply(asked(texts), how))
    for replies in found[1:]:
        for one, other in zip(found[0], replies, strict=True):
            assert (one.text, one.samples) == (other.text, other.samples)
            np.testing.assert_allclose(one.log_probs, other.log_probs, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(one.embeddings[1], other.embeddings[1], rtol=1e-3, atol=1e-4)


def test_samples_follow_the_model(seed):
    made = scorer("llama", seed)
    [reply] = made.reply(asked(["the cat"]), Decoding(1, n_samples=2000, random_state=seed))
    words = [token for token in reply.first if token.strip().isalpha()]  # what is no text is left out of samples
    likeliest = max(words, key=reply.first.__getitem__)
    share = np.mean([text == likeliest.strip() for text in reply.samples])
    chance = sum(np.exp(v) for token, v in reply.first.items() if token.strip() == likeliest.strip())
    assert abs(share - chance) < 4 * np.sqrt(chance * (1 - chance) / 2000) + 0.002  # tokens beyond the listed 20
