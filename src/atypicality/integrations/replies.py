"""Answers of a causal language model of `transformers`: one pass over the prompts, then all answers token by token."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Decoder", "Track", "padded", "render"]

N_FIRST = 20  # likeliest first tokens that are kept of an answer, as many as chat endpoints give


def render(tokenizer: Any, conversation: Sequence[Mapping[str, str]]) -> str:
    r"""The text of a conversation by the tokenizer's chat template; without one, the messages with blank lines between.

    >>> class Plain:
    ...     chat_template = None
    >>> render(Plain(), [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2 ="}])
    'Be brief.\n\n2 + 2 ='
    """
    if tokenizer.chat_template is None:
        return "\n\n".join(message["content"] for message in conversation)
    text: str = tokenizer.apply_chat_template(list(conversation), tokenize=False, add_generation_prompt=True)
    return text


def padded(torch: Any, sequences: list[list[int]]) -> tuple[Any, Any]:
    """Token numbers with zeros on the right, and where the sequences are, as whole numbers."""
    width = max(map(len, sequences))
    ids = torch.tensor([[*tokens, *[0] * (width - len(tokens))] for tokens in sequences])
    lengths = torch.tensor([len(tokens) for tokens in sequences])
    return ids, (torch.arange(width) < lengths[:, None]).long()


@dataclass
class Track:
    """One answer under way; a sample has `draws` between 0 and 1, a number per token, the likeliest answer has none."""

    draws: NDArray[np.float64] | None = None
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    states: list[NDArray[np.float32]] = field(default_factory=list)
    first: dict[int, float] = field(default_factory=dict)


class Decoder:
    """Answers to token sequences that begin with `n_past` tokens, whose keys and values are in `past`."""

    def __init__(self, torch: Any, model: Any, ends: set[int], past: Any = None, n_past: int = 0) -> None:
        self.torch, self.model, self.ends, self.past, self.n_past = torch, model, ends, past, n_past

    def batch(
        self, sequences: list[list[int]], tracks: list[list[Track]], max_tokens: int, temperature: float
    ) -> list[NDArray[np.float64]]:
        """Fill the tracks of each sequence, as many for all; returns log-probabilities of the sequences' own tokens.

        The latter begin with the second token after `past`.
        """
        torch, past = self.torch, copy.deepcopy(self.past)
        if past is not None:
            past.batch_repeat_interleave(len(sequences))
        ids, mask = (part.to(self.model.device) for part in padded(torch, [one[self.n_past :] for one in sequences]))
        places = self.n_past + torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        mask = torch.cat([mask.new_ones((len(sequences), self.n_past)), mask], dim=1)
        logits, hidden, past = self._run(ids, mask, places, past)
        ends = mask.sum(dim=1) - self.n_past - 1
        rows, width = torch.arange(len(sequences), device=ids.device), len(tracks[0])
        if width > 1:
            past.batch_repeat_interleave(width)
        states = (logits[rows, ends], hidden[rows, ends], mask, self.n_past + ends + 1)
        widened = [part.repeat_interleave(width, dim=0) for part in states]
        self._answer([track for row in tracks for track in row], past, widened, max_tokens, temperature)
        own = logits[:, :-1].gather(-1, ids[:, 1:, None])[..., 0].float() - logits[:, :-1].float().logsumexp(dim=-1)
        lines = zip(own.double().cpu().numpy(), ends.tolist(), strict=True)
        return [np.minimum(line[:size], 0.0) for line, size in lines]

    def _answer(self, tracks: list[Track], past: Any, states: list[Any], max_tokens: int, heat: float) -> None:
        """Token by token; an answer that has ended leaves the batch."""
        torch, (logits, hidden, mask, places) = self.torch, states
        for step in range(max_tokens):
            log_probs = logits.float().log_softmax(-1)
            tokens = self._choose(log_probs, tracks, step, heat)
            self._keep(tracks, tokens, log_probs, hidden)
            going = [i for i, token in enumerate(tokens.tolist()) if token not in self.ends]
            if not going or step == max_tokens - 1:
                return
            rows = torch.tensor(going, device=tokens.device)
            if len(going) < len(tracks):
                past.batch_select_indices(rows)
            tracks, tokens, places = [tracks[i] for i in going], tokens[rows, None], places[rows] + (step > 0)
            mask = torch.cat([mask[rows], mask.new_ones((len(going), 1))], dim=1)
            logits, hidden, past = self._run(tokens, mask, places[:, None], past)
            logits, hidden = logits[:, -1], hidden[:, -1]

    def _choose(self, log_probs: Any, tracks: list[Track], step: int, heat: float) -> Any:
        """The likeliest token, or for a sample the quantile of the next tokens at its draw."""
        tokens = log_probs.argmax(dim=-1)
        sampled = [i for i, track in enumerate(tracks) if track.draws is not None]
        if sampled:
            draws = self.torch.tensor([tracks[i].draws[step] for i in sampled])[:, None].to(tokens.device)  # type: ignore[index]
            mass = (log_probs[sampled] / heat).softmax(-1).double().cumsum(-1)
            drawn = self.torch.searchsorted(mass, draws * mass[:, -1:], right=True)[:, 0]
            tokens[sampled] = drawn.clamp(max=mass.shape[1] - 1)
        return tokens

    def _keep(self, tracks: list[Track], tokens: Any, log_probs: Any, hidden: Any) -> None:
        values = log_probs.gather(-1, tokens[:, None])[:, 0].double().tolist()
        top = log_probs.topk(min(N_FIRST, log_probs.shape[1])) if not tracks[0].tokens else None
        for i, (track, token, value) in enumerate(zip(tracks, tokens.tolist(), values, strict=True)):
            if top is not None and track.draws is None:
                track.first = dict(zip(top.indices[i].tolist(), top.values[i].double().tolist(), strict=True))
            track.tokens.append(token)
            track.log_probs.append(min(value, 0.0))
            track.states += [hidden[i].float().cpu().numpy()] if track.draws is None else []

    def _run(self, ids: Any, mask: Any, places: Any, past: Any) -> tuple[Any, Any, Any]:
        """Logits and last hidden states of all positions, and the keys and values."""
        out = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=places,
            past_key_values=past,
            use_cache=True,
            output_hidden_states=True,
        )
        return out.logits, out.hidden_states[-1], out.past_key_values
