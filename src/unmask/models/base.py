"""The contract between a masked language model and the engine.

A model predicts every masked position of a canvas at once. What is particular about a family (a shifted head, the
sampling convention, special tokens, block-causal attention) is said in its ModelSpec or hidden behind `predict`. The
engine uses the family's name only for presets and messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.cache.base import PassPlan
from unmask.cache.storage import KVCache
from unmask.models.checkpoint.tokenizer import TextCodec


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """What the engine must know about a checkpoint."""

    name: str  # as the user wrote it
    family: str  # 'llada', 'dream', 'sdar', 'toy', or a plug-in's own
    convention: Literal["llada", "dream"]  # decides temperature, scoring dtype and policy presets
    vocab_size: int
    n_layers: int
    max_length: int  # positions the model was built for
    mask_id: int
    eos_id: int
    end_ids: frozenset[int]  # ids that end the text: end of text, end of turn
    bos_id: int | None = None
    add_bos: bool = False  # put `bos_id` before a plain prompt
    shifted: bool = False  # the head predicts the next position; `predict` aligns its logits with positions
    causal: bool = False  # a block sees itself and the blocks before it; blocks are counted from position 0
    max_tokens: int | None = None  # recommended by the checkpoint
    block_size: int | None = None  # recommended by the checkpoint
    converses: bool = False  # trained on conversations, as far as its files tell


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What `predict` can be asked for beyond logits."""

    attention: bool = False  # attention maps, averaged over heads and layers
    shadow: bool = False  # predictions of positions as if their own token were masked
    states: bool = False  # the states before the head, which refresh='drift:X' compares


@dataclass(frozen=True, slots=True, kw_only=True)
class PassInputs:
    """What one forward pass over canvases, padded on the right, is asked for. A model changes none of it in place.

    Tokens behind the last position that is seen are ignored. Logits and maps may end with that position.
    """

    tokens: Int[Tensor, "b n"]
    # Which positions of each row to compute, and how many keys they see. A model may compute more positions. A plan
    # that leaves out positions which it sees comes with a cache.
    plan: PassPlan
    at: Int[Tensor, "b k"] | None = None  # positions whose logits are wanted; None: all that the plan computes
    # Keys and values of computed positions are written to the cache; those of other positions are read from it.
    cache: KVCache | None = None
    block_size: int | None = None  # of a block-causal model's blocks; None: the checkpoint's
    attention_layers: range | None = None  # layers whose attention is wanted too, averaged over heads and layers
    shadow: Int[Tensor, "b s"] | None = None  # positions to predict again as if masked themselves (the policy wino)
    states: bool = False  # whether the states before the head are wanted as well

    @classmethod
    def of(cls, tokens: Int[Tensor, "b n"], *, plan: PassPlan | None = None, **asked: Any) -> PassInputs:
        """From the arguments of `predict`; without a plan, all positions of every row are computed."""
        plan = plan or PassPlan.whole([tokens.shape[1]] * len(tokens), tokens.device)
        return cls(tokens=tokens, plan=plan, **asked)

    @property
    def length(self) -> int:
        """How many positions are seen. Tokens behind them are ignored."""
        return max(self.plan.seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What one forward pass gives, in the model's dtype and aligned with positions."""

    logits: Float[Tensor, "b k v"]
    attention: Float[Tensor, "b n n"] | None = None
    shadow_logits: Float[Tensor, "b s v"] | None = None
    # States before the head of the positions that the plan computes, if asked for. The next call may overwrite them.
    states: Float[Tensor, "b q w"] | None = None
    # The next pass over the same cache overwrites the logits.
    fleeting: bool = False


@runtime_checkable
class MaskedLM(Protocol):
    """A model that the engine can decode with. Its class may also have `capabilities`: see `capabilities_of`."""

    spec: ModelSpec

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def predict(self, tokens: Int[Tensor, "b n"], **asked: Any) -> Prediction:
        """What a pass over the tokens gives. `asked` are the other fields of `PassInputs`, each of them optional."""
        ...


def capabilities_of(model: MaskedLM) -> Capabilities:
    """What the model can do, as its class says.

    A subclass with its own `predict` must state its capabilities again: those of its base need not hold for it.
    """
    for kind in type(model).__mro__:
        if "capabilities" in vars(kind):
            return vars(kind)["capabilities"]
        if "predict" in vars(kind):
            break
    return Capabilities()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A checkpoint ready for use."""

    model: MaskedLM
    codec: TextCodec
