"""A deterministic stand-in for a masked diffusion model: no weights, no download, the same answers everywhere.

It recites one sentence after any prompt. A letter is more certain once its neighbours are committed, and some letters
are wrong until the letter on their left is committed. So the order of commits matters, as with a real model.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from tokenizers import Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import BPE
from torch import Tensor

from unmask.models.base import Capabilities, LoadedModel, ModelSpec, PassInputs, Prediction
from unmask.models.checkpoint.tokenizer import TextCodec

SENTENCE = (
    "Every masked letter is guessed at once, each guess alone; commit the ones that agree together, look again, "
    "and the whole line appears in a few passes."
)
MASK, END, TURN, SEPARATOR = "[MASK]", "<|endoftext|>", "<|eot_id|>", "<|answer|>"
CHAT_TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}" + SEPARATOR
PERIOD = 509  # positions after which the letters' difficulty repeats; a prime, so that no block size divides it


def load_toy(*, device: torch.device, dtype: torch.dtype) -> LoadedModel:
    """The toy model and its byte tokenizer."""
    codec = TextCodec(_byte_tokenizer(), special_tokens={"eos_token": END}, chat_template=CHAT_TEMPLATE)
    return LoadedModel(model=Toy(codec, device=device, dtype=dtype), codec=codec)


def _byte_tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={byte: index for index, byte in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([MASK, END, TURN, SEPARATOR])
    special = [(SEPARATOR, tokenizer.token_to_id(SEPARATOR))]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {SEPARATOR}", special_tokens=special)
    return tokenizer


class Toy:
    """Logits from a table and from the neighbours that are committed."""

    capabilities: ClassVar[Capabilities] = Capabilities(attention=True, shadow=True)

    def __init__(self, codec: TextCodec, *, device: torch.device, dtype: torch.dtype) -> None:
        ids = {text: codec.encode(text, special=False)[0] for text in (MASK, END, TURN, SEPARATOR)}
        self.device, self.dtype = device, dtype
        self.separator_id = ids[SEPARATOR]
        self.spec = ModelSpec(
            name="toy",
            family="toy",
            convention="llada",
            vocab_size=codec.highest_id + 1,
            n_layers=4,
            max_length=4096,
            mask_id=ids[MASK],
            eos_id=ids[END],
            end_ids=frozenset({ids[END], ids[TURN]}),
        )
        sentence = codec.encode(SENTENCE, special=False)
        draws = torch.Generator().manual_seed(0)
        self._answer = torch.tensor([*sentence, ids[END]], device=device)
        self._decoy = torch.tensor(sentence)[torch.randint(len(sentence), (PERIOD,), generator=draws)].to(device)
        self._difficulty = (4.0 * torch.rand(PERIOD, generator=draws)).to(device)
        self._confused = (torch.rand(PERIOD, generator=draws) < 0.2).to(device)
        self._noise = torch.rand(PERIOD, self.spec.vocab_size, generator=draws).to(device)

    def predict(self, tokens: Int[Tensor, "b n"], **asked: Any) -> Prediction:
        """See base.py. The toy has neither states nor keys: every cache gives the same tokens."""
        inputs = PassInputs.of(tokens, **asked)
        plan, at, shadow = inputs.plan, inputs.at, inputs.shadow
        visible = torch.arange(tokens.shape[1], device=tokens.device) < plan.visible[:, None]
        at = plan.positions if at is None and not plan.self_contained else at
        logits, row = self._logits(tokens, visible), torch.arange(len(tokens), device=tokens.device)[:, None]
        return Prediction(
            logits=logits if at is None else logits[row, at],
            attention=None if inputs.attention_layers is None else _nearby(visible),
            shadow_logits=None if shadow is None else logits[row, shadow],
        )

    def _logits(self, tokens: Int[Tensor, "b n"], visible: Bool[Tensor, "b n"]) -> Float[Tensor, "b n v"]:
        position = torch.arange(tokens.shape[1], device=tokens.device)
        begin = torch.where((tokens == self.separator_id) & visible, position + 1, 0).amax(-1, keepdim=True)
        letter = self._answer[(position - begin).clamp(0, len(self._answer) - 1)]
        committed = (tokens != self.spec.mask_id) & visible
        left, right = committed.roll(1, -1), committed.roll(-1, -1)
        left[:, 0], right[:, -1] = False, False
        place = position % PERIOD
        certain = letter == self.spec.eos_id
        confused = self._confused[place] & ~left & ~certain
        height = 9.5 + 3.0 * left + 1.5 * right - torch.where(certain, 0.0, self._difficulty[place]) - 2.0 * confused
        decoy_height = torch.where(confused, height + 0.4, 0.0)
        logits = self._noise[place].repeat(tokens.shape[0], 1, 1)
        logits.scatter_add_(-1, self._decoy[place].expand_as(tokens)[..., None], decoy_height[..., None])
        logits.scatter_add_(-1, letter[..., None], height[..., None])
        return logits.to(self.dtype)


def _nearby(visible: Bool[Tensor, "b n"]) -> Float[Tensor, "b n n"]:
    """Attention that falls off with distance."""
    position = torch.arange(visible.shape[1], device=visible.device)
    scores = -(position[:, None] - position).abs().float()
    weights = scores.masked_fill(~visible[:, None, :], -torch.inf).softmax(-1)
    return weights * visible[..., None]
