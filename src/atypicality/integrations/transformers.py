"""Causal language models of Hugging Face `transformers` as prompt scorers: right padding, exact in any batch."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.llm.scorers import LabelScores, TokenScores, distinct
from atypicality.progress import track
from atypicality.validation import check_integer, require

__all__ = ["TransformersScorer"]

CPU_BATCH_TOKENS = 512
GPU_BATCH_TOKENS = 16384
CPU_LOGITS = 2**23
GPU_LOGITS = 2**28
"""Entries of the next-token logits that exist at one time: 32 MB, or 1 GB on an accelerator, whatever the batch."""
UNBOUNDED = 2**31
"""Tokenizers without a limit claim lengths above this."""


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
    positions at a time and only the entries asked for are kept. Sums over tokens are in float64.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Any causal language model; it is used as it is, on its device and in its dtype, and put into evaluation mode
        while it scores.
    tokenizer : transformers.PreTrainedTokenizerBase
    batch_tokens : int, optional
        Tokens of a batch, padding included; a longer prompt is a batch of its own. Default: 512 on a CPU, 16,384 else.

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
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, **options)
        options |= {"weights_only": True, "dtype": dtype or ("float32" if device == "cpu" else "auto")}
        loaded = transformers.AutoModelForCausalLM.from_pretrained(name, **options)
        return cls(loaded.to(device), tokenizer, batch_tokens=batch_tokens)

    @property
    def context_length(self) -> int | None:
        """Tokens that the model takes, or None where it does not say."""
        claims = [getattr(self.model.config, "max_position_embeddings", None), self.tokenizer.model_max_length]
        known = [int(claim) for claim in claims if claim is not None and 0 < claim < UNBOUNDED]
        return min(known, default=None)

    def count_tokens(self, prompts: Sequence[str]) -> list[int]:
        """Tokens of each prompt, the start token included."""
        return [len(text.ids) for text in self._encode(prompts)]

    def score(self, prompts: Sequence[str]) -> list[TokenScores]:
        """Log-probabilities of the tokens of each prompt, in order."""
        encoded = self._encode(prompts)
        found = self._run([text.ids for text in encoded], [])
        return [_token_scores(text, scored) for text, (scored, _) in zip(encoded, found, strict=True)]

    def score_labels(self, prompts: Sequence[str], labels: Sequence[str]) -> LabelScores:
        """Scores of each prompt and of each label after it; one pass where the labels' first tokens are distinct."""
        encoded = self._encode(prompts)
        endings = self._endings(prompts[0], labels)
        if distinct(endings):
            found = self._run([text.ids for text in encoded], [ending[0] for ending in endings])
            scores = [_token_scores(text, scored) for text, (scored, _) in zip(encoded, found, strict=True)]
            return LabelScores(scores, np.array([after for _, after in found]), "first token")
        joined = self._run([text.ids + ending for text in encoded for ending in endings], [])
        tails = [scored[-len(endings[j % len(labels)]) :].sum() for j, (scored, _) in enumerate(joined)]
        firsts = joined[:: len(labels)]
        scores = [
            _token_scores(text, scored[: len(scored) - len(endings[0])])
            for text, (scored, _) in zip(encoded, firsts, strict=True)
        ]
        return LabelScores(scores, np.reshape(tails, (len(prompts), len(labels))), "all tokens")

    # from texts to tokens

    @property
    def _start(self) -> list[int]:
        ids = (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id)
        return [token for token in ids if token is not None][:1]

    def _encode(self, texts: Sequence[str]) -> list[_Encoded]:
        if not texts:
            return []
        with_ends = bool(getattr(self.tokenizer, "is_fast", False))
        found = self.tokenizer(list(texts), add_special_tokens=False, return_offsets_mapping=with_ends, verbose=False)
        ids = [self._start + list(tokens) for tokens in found["input_ids"]]
        ends: list[Any] = [None] * len(ids)
        if with_ends:
            ends = [np.array([end for _, end in offsets], np.intp) for offsets in found["offset_mapping"]]
        return [self._checked(row, tokens, end) for row, (tokens, end) in enumerate(zip(ids, ends, strict=True))]

    def _checked(self, row: int, ids: list[int], ends: NDArray[np.intp] | None) -> _Encoded:
        if not ids:
            raise ValueError(
                f"prompt {row} has no tokens and the tokenizer no start token, so there is nothing to score it by."
            )
        if ends is not None and not self._start:
            ends = ends[1:]
        return _Encoded(ids, ends)

    def _endings(self, prompt: str, labels: Sequence[str]) -> list[list[int]]:
        """Tokens of each label as they stand after a prompt."""
        whole = self._encode([prompt, *(prompt + label for label in labels)])
        size = len(whole[0].ids)
        for label, text in zip(labels, whole[1:], strict=True):
            if text.ids[:size] != whole[0].ids or len(text.ids) == size:
                raise ValueError(
                    f"the tokenizer joins the end of the prompt with the label {label!r}. "
                    "End the template at a word or a punctuation mark."
                )
        return [text.ids[size:] for text in whole[1:]]

    # from tokens to log-probabilities

    def _run(
        self, sequences: list[list[int]], after: list[int]
    ) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """For each sequence the log-probabilities of its tokens from the second on, and of the tokens `after` it."""
        torch = require("torch", extra="llm", feature="TransformersScorer")
        self._check_lengths(sequences)
        found: dict[int, tuple[NDArray[np.float64], NDArray[np.float64]]] = {}
        training = self.model.training
        self.model.eval()
        try:
            with torch.inference_mode():
                logits_of = self._logits_of(torch)
                batches = list(self._batches(sequences))
                for rows in track(batches, "Scoring prompts"):
                    found |= zip(rows, self._batch(torch, [sequences[i] for i in rows], after, logits_of), strict=True)
        finally:
            self.model.train(training)
        return [found[i] for i in range(len(sequences))]

    def _check_lengths(self, sequences: list[list[int]]) -> None:
        limit = self.context_length
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
            budget = CPU_BATCH_TOKENS if self.model.device.type == "cpu" else GPU_BATCH_TOKENS
        check_integer(budget, "batch_tokens", low=1)
        rows = sorted(range(len(sequences)), key=lambda i: -len(sequences[i]))
        while rows:
            size = max(1, budget // len(sequences[rows[0]]))
            yield rows[:size]
            rows = rows[size:]

    def _batch(
        self, torch: Any, sequences: list[list[int]], after: list[int], logits_of: Callable[..., Iterator[Any]]
    ) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        device = self.model.device
        lengths = [len(ids) for ids in sequences]
        ids = torch.zeros((len(sequences), max(lengths)), dtype=torch.long)
        for row, tokens in enumerate(sequences):
            ids[row, : len(tokens)] = torch.tensor(tokens)
        mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        last = torch.arange(1, max(lengths) + 1) == torch.tensor(lengths)[:, None]
        targets = torch.roll(ids, -1, dims=1)[mask].to(device)
        picked, following = [], []
        asked = torch.tensor(after, dtype=torch.long, device=device)
        place = 0
        for logits in logits_of(ids.to(device), mask.to(device)):
            rows = slice(place, place + len(logits))
            place += len(logits)
            norm = torch.logsumexp(logits, dim=-1)
            picked.append(logits.gather(-1, targets[rows, None])[:, 0] - norm)
            ends = last[mask][rows].to(device)
            following.append(logits[ends][:, asked] - norm[ends, None])
        values = torch.cat(picked).double().cpu().numpy()
        nexts = torch.cat(following).double().cpu().numpy()
        pieces = np.split(values, np.cumsum(lengths)[:-1])
        return [(np.minimum(piece[:-1], 0.0), after_row) for piece, after_row in zip(pieces, nexts, strict=True)]

    def _logits_of(self, torch: Any) -> Callable[..., Iterator[Any]]:
        """How to get float32 logits of the real positions of a batch, a few at a time.

        Body and output layer apart, where together they give what the model gives; some models scale or bend the
        logits afterwards, and these run whole, one sequence at a time.
        """
        body, head = self.model.base_model, self.model.get_output_embeddings()
        if body is self.model or head is None or not self._parts_agree(torch, body, head):
            return self._whole
        entries = CPU_LOGITS if self.model.device.type == "cpu" else GPU_LOGITS
        step = max(1, entries // head.weight.shape[0])

        def in_pieces(ids: Any, mask: Any) -> Iterator[Any]:
            hidden = body(input_ids=ids, attention_mask=mask.long(), use_cache=False)[0][mask]
            return (head(piece).float() for piece in hidden.split(step))

        return in_pieces

    def _parts_agree(self, torch: Any, body: Any, head: Any) -> bool:
        probe = torch.arange(1, 4, device=self.model.device)[None]
        whole = self.model(input_ids=probe, use_cache=False).logits.float()
        parts = head(body(input_ids=probe, use_cache=False)[0]).float()
        return bool(whole.shape == parts.shape and torch.allclose(whole, parts, rtol=1e-5, atol=1e-6))

    def _whole(self, ids: Any, mask: Any) -> Iterator[Any]:
        for row, kept in zip(ids, mask, strict=True):
            yield self.model(input_ids=row[kept][None], use_cache=False).logits[0].float()


def _source(model: str | os.PathLike[str]) -> tuple[str, dict[str, Any]]:
    path = Path(model)
    if path.suffix.lower() != ".gguf":
        return str(model), {}
    if not path.is_file():
        raise FileNotFoundError(f"no GGUF file at {str(path)!r}.")
    require("gguf", extra="llm", feature="reading GGUF files")
    return str(path.parent), {"gguf_file": path.name}


def _token_scores(text: _Encoded, log_probs: NDArray[np.float64]) -> TokenScores:
    scored = text.ids[len(text.ids) - log_probs.size :]
    return TokenScores(log_probs, len(text.ids), text.ends, tuple(map(str, scored)))
