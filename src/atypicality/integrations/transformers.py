"""Causal language models of Hugging Face `transformers` as prompt scorers: right padding, exact in any batch."""

import contextlib
import copy
import functools
import importlib
import itertools
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.blocks.progress import track
from atypicality.integrations.replies import Decoder, Track, padded, render
from atypicality.llm.generation import Decoding, Reply, added_up
from atypicality.llm.scorers import LabelScores, TokenScores, distinct, refuse_joined
from atypicality.validation import check_integer, require

__all__ = ["TransformersScorer"]

Scored = tuple[NDArray[np.float64], NDArray[np.float64]]

CPU_BATCH_TOKENS = 256
OTHER_BATCH_TOKENS = 16384
WORTH_SHARING = 8  # tokens at the beginning of all prompts from which on they are run once for all
CPU_LOGITS = 2**23
OTHER_LOGITS = 2**28
"""Entries of the next-token logits that exist at one time: 32 MB, or 1 GB on an accelerator, whatever the batch."""
UNBOUNDED = 2**31  # tokenizers without a limit claim lengths above this


@dataclass(frozen=True)
class _Encoded:
    ids: list[int]
    ends: NDArray[np.intp] | None


class TransformersScorer:
    """Score prompts with a causal language model that is in memory; see `from_pretrained` for one that is not.

    The log-probability of a token is the log-softmax of the model's logits at the position before it. A start token
    is put before every text: the tokenizer's beginning-of-sequence token, or for want of one its end-of-sequence
    token, which closes the document before. With neither, the first token has nothing before it and is not scored.

    Batches are padded on the right, where a causal model cannot look, so a prompt's values do not depend on its
    batch. Prompts are batched by length under a budget of tokens. The logits over the vocabulary are made for a few
    positions at a time and only the entries asked for are kept. What all prompts of a call have in common at their
    beginning, such as a template's instructions, is run once. Sums over tokens are in float64.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Any causal language model; it is used as it is, on its device and in its dtype, and put into evaluation mode
        while it scores.
    tokenizer : transformers.PreTrainedTokenizerBase
    batch_tokens : int, optional
        Tokens of a batch, padding included; a longer prompt is a batch of its own. Default: 256 on a CPU, 16,384 else.

    Examples
    --------
    From a file, without network::

        scorer = TransformersScorer.from_pretrained("SmolLM2-135M-Instruct.Q4_1.gguf")
        scorer.score(["The cat sat on the mat."])[0].log_probs.sum()
    """

    def __init__(self, model: Any, tokenizer: Any, *, batch_tokens: int | None = None) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.batch_tokens = batch_tokens

    @classmethod
    def from_pretrained(
        cls,
        model: str | os.PathLike[str],
        *,
        device: str | None = None,
        dtype: str | None = None,
        revision: str | None = None,
        batch_tokens: int | None = None,
    ) -> "TransformersScorer":
        """Load a folder, a `.gguf` file or a model's name on the hub. No code that comes with a model is run.

        Parameters
        ----------
        model : str or path
        device : str, optional
            Default: "cuda" where there is one, else "cpu".
        dtype : str, optional
            Default: "float32" on a CPU, whose half-precision products are slow or missing; elsewhere the file's own.
        revision : str, optional
            Branch, tag or commit on the hub.
        batch_tokens : int, optional
            See the class.
        """
        torch = require("torch", extra="llm", feature="TransformersScorer")
        transformers = require("transformers", extra="llm", feature="TransformersScorer")
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        name, options = _source(model)
        options |= {"trust_remote_code": False, "revision": revision or "main"}
        weights = {"weights_only": True, "dtype": dtype or ("float32" if device == "cpu" else "auto")}
        with _quiet_in_a_pipe(transformers):
            tokenizer = transformers.AutoTokenizer.from_pretrained(name, **options)
            loaded = transformers.AutoModelForCausalLM.from_pretrained(name, **options, **weights)
        return cls(loaded.to(device), tokenizer, batch_tokens=batch_tokens)

    @property
    def context_length(self) -> int | None:
        """Tokens that the model takes, or None where it does not say."""
        claims = [getattr(self.model.config, "max_position_embeddings", None), self.tokenizer.model_max_length]
        known = [int(claim) for claim in claims if claim is not None and 0 < claim < UNBOUNDED]
        return min(known, default=None)

    def count_tokens(self, prompts: Sequence[str]) -> list[int]:
        """Tokens of each of the `prompts`, the start token included."""
        return [len(text.ids) for text in self._encode(prompts)]

    def score(self, prompts: Sequence[str]) -> list[TokenScores]:
        """Log-probabilities of the tokens of each of the `prompts`, in order."""
        encoded = self._encode(prompts)
        return _token_scores(encoded, self._run([text.ids for text in encoded], []))

    def score_labels(self, prompts: Sequence[str], labels: Sequence[str]) -> LabelScores:
        """Scores of each of the `prompts` and of the `labels` after it, in one pass where first tokens are distinct."""
        encoded = self._encode(prompts)
        endings = self._endings(prompts[0], labels)
        if distinct(endings):
            found = self._run([text.ids for text in encoded], [ending[0] for ending in endings])
            following = np.array([after for _, after in found])
            return LabelScores(_token_scores(encoded, found), following, "first token")
        joined = self._run([text.ids + ending for text in encoded for ending in endings], [])
        tails = [scored[-len(endings[j % len(labels)]) :].sum() for j, (scored, _) in enumerate(joined)]
        firsts = [(scored[: -len(endings[0])], after) for scored, after in joined[:: len(labels)]]
        return LabelScores(_token_scores(encoded, firsts), np.reshape(tails, (len(prompts), len(labels))), "all tokens")

    def reply(self, conversations: Sequence[Sequence[Mapping[str, str]]], how: Decoding) -> list[Reply]:
        """The most likely answer to each of the `conversations`, in order, and samples; `how` has the options.

        Conversations are written by the tokenizer's chat template.
        """
        torch = require("torch", extra="llm", feature="TransformersScorer")
        texts = [render(self.tokenizer, turns) for turns in conversations]
        encoded = self._encode(texts, start=[] if self.tokenizer.chat_template else None)
        sequences = [text.ids for text in encoded]
        self._check_lengths(sequences, more=how.max_tokens)
        size = (how.n_samples, how.max_tokens)
        rng = [np.random.default_rng((how.random_state, row)).random(size) for row in range(len(texts))]
        tracks = [[Track(), *map(Track, draws)] for draws in rng]
        with self._evaluating(torch):
            scores = self._decode(_Pass(torch, self.model), sequences, tracks, how)
        spans = [_last_message(text, turns[-1]["content"]) for text, turns in zip(texts, conversations, strict=True)]
        rows = zip(_token_scores(encoded, scores), spans, tracks, strict=True)
        return [self._reply(scored, span, *row, embeddings=how.embeddings) for scored, span, row in rows]

    # from texts to tokens

    @property
    def _start(self) -> list[int]:
        ids = (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id)
        return [token for token in ids if token is not None][:1]

    def _encode(self, texts: Sequence[str], start: list[int] | None = None) -> list[_Encoded]:
        if not texts:
            return []
        start = self._start if start is None else start
        with_ends = bool(getattr(self.tokenizer, "is_fast", False))
        found = self.tokenizer(list(texts), add_special_tokens=False, return_offsets_mapping=with_ends, verbose=False)
        ids = [start + list(tokens) for tokens in found["input_ids"]]
        if [] in ids:
            raise ValueError(
                f"prompt {ids.index([])} has no tokens and the tokenizer no start token, so there is nothing to score "
                "it by."
            )
        ends: list[Any] = [None] * len(ids)
        if with_ends:
            first = 0 if start else 1
            ends = [np.array([end for _, end in pairs[first:]], np.intp) for pairs in found["offset_mapping"]]
        return [_Encoded(*both) for both in zip(ids, ends, strict=True)]

    def _endings(self, prompt: str, labels: Sequence[str]) -> list[list[int]]:
        """Tokens of each label as they stand after a prompt."""
        whole = self._encode([prompt, *(prompt + label for label in labels)])
        size = len(whole[0].ids)
        for label, text in zip(labels, whole[1:], strict=True):
            refuse_joined(text.ids[:size] != whole[0].ids or len(text.ids) == size, label)
        return [text.ids[size:] for text in whole[1:]]

    # from tokens to log-probabilities

    def _run(self, sequences: list[list[int]], after: list[int]) -> list[Scored]:
        """For each sequence the log-probabilities of its tokens from the second on, and of the tokens `after` it."""
        torch = require("torch", extra="llm", feature="TransformersScorer")
        self._check_lengths(sequences)
        with self._evaluating(torch):
            first, run = self._shared(_Pass(torch, self.model), sequences)
            rests = self._run_batches(run, [ids[run.n_past :] for ids in sequences], after)
        return [(np.r_[first, rest], following) for rest, following in rests]

    @contextlib.contextmanager
    def _evaluating(self, torch: Any) -> Iterator[None]:
        training = self.model.training
        self.model.eval()
        try:
            with torch.inference_mode():
                yield
        finally:
            self.model.train(training)

    def _shared(self, plain: "_Pass", sequences: list[list[int]]) -> tuple[NDArray[np.float64], "_Pass"]:
        """Prompts of one template begin alike: what they share is run once, and the rest of each on top of it."""
        alike = itertools.takewhile(lambda tokens: len(set(tokens)) == 1, zip(*sequences, strict=False))
        shared = [tokens[0] for tokens in alike] if len(sequences) > 1 else []
        after_shared = plain.on_top_of(shared) if len(shared) >= WORTH_SHARING else None
        if after_shared is None:
            return np.empty(0), plain
        [(first, _)] = plain.batch([shared], [])
        return first, after_shared

    def _run_batches(self, run: "_Pass", sequences: list[list[int]], after: list[int]) -> list[Scored]:
        found: dict[int, Scored] = {}
        for rows in track(list(self._batches(sequences)), "Scoring prompts", unit="batches"):
            found |= zip(rows, run.batch([sequences[i] for i in rows], after), strict=True)
        return [found[i] for i in range(len(sequences))]

    def _decode(
        self, plain: "_Pass", sequences: list[list[int]], tracks: list[list[Track]], how: Decoding
    ) -> list[Scored]:
        """Fill the tracks of every sequence; the log-probabilities of the sequences' own tokens."""
        first, run = self._shared(plain, sequences)
        ends = self.model.generation_config.eos_token_id
        known = {*(ends if isinstance(ends, list) else [ends]), self.tokenizer.eos_token_id} - {None}
        decoder = Decoder(plain.torch, self.model, known, run.past, run.n_past)
        found: dict[int, NDArray[np.float64]] = {}
        for rows in track(list(self._batches([ids[run.n_past :] for ids in sequences])), "Generating answers"):
            chosen = [sequences[i] for i in rows], [tracks[i] for i in rows]
            found |= zip(rows, decoder.batch(*chosen, how.max_tokens, how.temperature), strict=True)
        return [(np.r_[first, found[i]], np.empty(0)) for i in range(len(sequences))]

    def _reply(
        self, scores: TokenScores, span: tuple[int, int] | None, answer: Track, *samples: Track, embeddings: bool
    ) -> Reply:
        decode = functools.partial(self.tokenizer.decode, skip_special_tokens=True)
        own = None
        if scores.ends is not None and span is not None:
            kept = scores.inside(span)
            own = TokenScores(scores.log_probs[kept], int(kept.sum()))
        return Reply(
            decode(answer.tokens).strip(),
            np.array(answer.log_probs),
            tuple(decode(sample.tokens).strip() for sample in samples),
            own,
            added_up((self.tokenizer.decode([token]) for token in answer.first), answer.first.values()),
            (answer.states[0], np.mean(answer.states, axis=0)) if embeddings else None,
        )

    def _check_lengths(self, sequences: list[list[int]], more: int = 0) -> None:
        limit = self.context_length
        limit = None if limit is None else limit - more
        long = [i for i, ids in enumerate(sequences) if limit is not None and len(ids) > limit]
        if long:
            raise ValueError(
                f"prompt {long[0]} has {len(sequences[long[0]])} tokens and the model takes {limit} "
                f"({len(long)} prompts are too long). Shorten them, or drop them with max_tokens={limit}."
            )

    def _batches(self, sequences: list[list[int]]) -> Iterator[list[int]]:
        """Rows by falling length, cut so that rows times the longest stay within the budget."""
        budget = self.batch_tokens
        if budget is None:
            budget = CPU_BATCH_TOKENS if self.model.device.type == "cpu" else OTHER_BATCH_TOKENS
        check_integer(budget, "batch_tokens", low=1)
        rows = sorted(range(len(sequences)), key=lambda i: -len(sequences[i]))
        while rows:
            size = max(1, budget // len(sequences[rows[0]]))
            yield rows[:size]
            rows = rows[size:]


class _Pass:
    """A model's pass over batches of token sequences, each on top of tokens that were run before, if any."""

    def __init__(self, torch: Any, model: Any, past: Any = None, n_past: int = 0) -> None:
        self.torch, self.model, self.past, self.n_past = torch, model, past, n_past
        self.body, self.head = model.base_model, model.get_output_embeddings()
        self.in_parts = past is not None or self._parts_agree()

    def batch(self, sequences: list[list[int]], after: list[int]) -> list[Scored]:
        """Log-probabilities of each sequence's tokens from the second on, and of the tokens `after` its end."""
        torch, device = self.torch, self.model.device
        ids, mask = padded(torch, sequences)
        mask = mask.bool()
        targets = torch.roll(ids, -1, dims=1)[mask].to(device)
        ends = mask.sum(dim=1).cumsum(0) - 1  # the last positions, among all real ones in a row
        values, following = self._pick(self._logits(ids.to(device), mask.to(device)), targets, ends.to(device), after)
        pieces = np.split(values, ends[:-1].numpy() + 1)
        return [(np.minimum(piece[:-1], 0.0), row) for piece, row in zip(pieces, following, strict=True)]

    def _pick(
        self, blocks: Iterator[Any], targets: Any, ends: Any, after: list[int]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Of the logits of all positions, block by block, keep only the log-probabilities that were asked for."""
        torch, place = self.torch, 0
        picked, following = [], []
        for logits in blocks:
            norm = torch.logsumexp(logits, dim=-1)
            picked.append(logits.gather(-1, targets[place : place + len(logits), None])[:, 0] - norm)
            rows = ends[(ends >= place) & (ends < place + len(logits))] - place
            following.append(logits[rows][:, after] - norm[rows, None])
            place += len(logits)
        return tuple(torch.cat(values).double().cpu().numpy() for values in (picked, following))

    def _logits(self, ids: Any, mask: Any) -> Iterator[Any]:
        """float32 logits of the real positions of a batch, a few at a time.

        Body and output layer run apart where together they give what the model gives. Some models scale or bend their
        logits afterwards: these run whole, one sequence at a time.
        """
        if self.in_parts:
            entries = CPU_LOGITS if self.model.device.type == "cpu" else OTHER_LOGITS
            hidden = self._hidden(ids, mask)[mask]
            return (self.head(part).float() for part in hidden.split(max(1, entries // self.head.weight.shape[0])))
        rows = (row[kept][None] for row, kept in zip(ids, mask, strict=True))
        return (self.model(input_ids=row, use_cache=False).logits[0].float() for row in rows)

    def _hidden(self, ids: Any, mask: Any) -> Any:
        if self.past is None:
            return self.body(input_ids=ids, attention_mask=mask.long(), use_cache=False)[0]
        past = copy.deepcopy(self.past)
        past.batch_repeat_interleave(len(ids))
        mask = self.torch.cat([mask.new_ones((len(ids), self.n_past)), mask], dim=1)
        return self.body(input_ids=ids, attention_mask=mask.long(), past_key_values=past, use_cache=True)[0]

    def _parts_agree(self) -> bool:
        if self.body is self.model or self.head is None:
            return False
        probe = self.torch.arange(1, 4, device=self.model.device)[None]
        whole = self.model(input_ids=probe, use_cache=False).logits.float()
        parts = self.head(self.body(input_ids=probe, use_cache=False)[0]).float()
        return bool(whole.shape == parts.shape and self.torch.allclose(whole, parts, rtol=1e-5, atol=1e-6))

    def on_top_of(self, shared: list[int]) -> "_Pass | None":
        """A pass that starts at the last of the shared tokens, or None for a model whose memory cannot be copied.

        Only plain key-value memories are: the last shared token must come out of them as it does without them.
        """
        if not self.in_parts:
            return None
        ids = self.torch.tensor([shared], device=self.model.device)
        past = self.body(input_ids=ids[:, :-1], use_cache=True).get("past_key_values")
        if type(past).__name__ != "DynamicCache" or not hasattr(past, "batch_repeat_interleave"):
            return None
        made = _Pass(self.torch, self.model, past, len(shared) - 1)
        with_past = made._hidden(ids[:, -1:], self.torch.ones_like(ids[:, -1:], dtype=self.torch.bool))[0, -1]
        without = self.body(input_ids=ids, use_cache=False)[0][0, -1]
        tolerance = 1e-4 if without.dtype == self.torch.float32 else 3e-2  # rounding of half precision
        close = (with_past - without).norm() <= tolerance * without.norm()
        return made if bool(close) else None


@contextlib.contextmanager
def _quiet_in_a_pipe(transformers: Any) -> Iterator[None]:
    """Without the package's own progress bars, unless someone is there to see them."""
    logging = transformers.utils.logging
    silenced = logging.is_progress_bar_enabled() and not sys.stderr.isatty()
    reader = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    bar = getattr(reader, "tqdm", None)
    if silenced:
        logging.disable_progress_bar()
        reader.__dict__["tqdm"] = logging.tqdm  # the bar of GGUF files does not obey the switch by itself
    try:
        yield
    finally:
        if silenced:
            logging.enable_progress_bar()
            reader.__dict__["tqdm"] = bar


def _source(model: str | os.PathLike[str]) -> tuple[str, dict[str, Any]]:
    path = Path(model)
    if path.suffix.lower() != ".gguf":
        return str(model), {}
    if not path.is_file():
        raise FileNotFoundError(f"no GGUF file at {str(path)!r}.")
    require("gguf", extra="llm", feature="reading GGUF files")
    return str(path.parent), {"gguf_file": path.name}


def _last_message(text: str, message: str) -> tuple[int, int] | None:
    """Where the last message stands in the text of a conversation; None where the template changed it."""
    start = text.rfind(message.strip())
    return (start, start + len(message.strip())) if start >= 0 else None


def _token_scores(texts: list[_Encoded], found: list[Scored]) -> list[TokenScores]:
    scores = []
    for text, (log_probs, _) in zip(texts, found, strict=True):
        scored = text.ids[len(text.ids) - log_probs.size :]
        scores.append(TokenScores(log_probs, len(text.ids), text.ends, tuple(map(str, scored))))
    return scores
