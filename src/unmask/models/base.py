"""The contract between a masked language model and the engine.

A model predicts every masked position of a canvas at once. Whatever is odd about a family (a shifted head, the sampling
convention, special tokens, who sees whom) is said in its ModelSpec or hidden behind `predict`; nothing downstream asks
for the family.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

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
    convention: Literal["llada", "dream"]  # whose temperature, scoring dtype and policy presets apply
    vocab_size: int
    n_layers: int
    max_length: int  # positions the model was built for
    mask_id: int
    eos_id: int
    end_ids: frozenset[int]  # ids that end the text: end of text, end of turn
    bos_id: int | None = None
    add_bos: bool = False  # put `bos_id` before a plain prompt
    shifted: bool = False  # the head predicts the next position; `predict` has realigned it
    causal: bool = False  # a block sees itself and what lies before it; blocks are counted from position 0
    max_tokens: int | None = None  # recommended by the checkpoint
    block_size: int | None = None  # the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What `predict` can be asked for beyond logits."""

    attention: bool = False  # attention maps, averaged over heads and layers
    shadow: bool = False  # predictions of positions as if their own token were masked
    states: bool = False  # the states before the head, which refresh='drift:X' compares


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What one forward pass gives, in the model's dtype and aligned with positions."""

    logits: Float[Tensor, "b k v"]
    attention: Float[Tensor, "b n n"] | None = None
    shadow_logits: Float[Tensor, "b s v"] | None = None
    # Of the positions that the plan computes, before the head, if asked for. The next call may overwrite them.
    states: Float[Tensor, "b q w"] | None = None
    # The next pass over the same cache puts its logits in the same place.
    fleeting: bool = False


@runtime_checkable
class MaskedLM(Protocol):
    """A model the engine can decode with. Its class may also have `capabilities`: see `capabilities_of`."""

    spec: ModelSpec

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def predict(
        self,
        tokens: Int[Tensor, "b n"],
        *,
        plan: PassPlan | None = None,
        at: Int[Tensor, "b k"] | None = None,
        cache: KVCache | None = None,
        block_size: int | None = None,
        attention_layers: range | None = None,
        shadow: Int[Tensor, "b s"] | None = None,
        states: bool = False,
    ) -> Prediction:
        """Logits for the positions `at` (default: all that the plan computes) of canvases padded on the right.

        What lies behind the last position that is seen is not looked at, and may be left out of what is given back.

        plan:  which positions of each row to compute, and how many keys they see; None: all, without padding. A model
               may compute more than it is asked for. Plans that do not begin at 0 come with a cache.
        cache: keys and values of what is computed are written to it, and those of all else are read from it.
        block_size: of the blocks of a block-causal model; None: the checkpoint's.
        attention_layers: layers whose attention, averaged over heads and layers, is wanted as well.
        shadow: positions to predict a second time as if their own token were masked (see policies/wino.py).
        states: the states before the head are wanted as well.

        `plan`, `at` and `cache` are never changed in place.
        """
        ...


def capabilities_of(model: MaskedLM) -> Capabilities:
    """What the model can do, as its class says.

    A subclass with a `predict` of its own says it anew, since what its base can do need not hold for it.
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
