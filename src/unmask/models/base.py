"""The contract between a masked language model and the engine.

A model predicts every masked position of a canvas at once. Whatever is odd about a family (a shifted head, the sampling
convention, special tokens) is said in its ModelSpec or hidden behind `predict`; nobody downstream asks for the family.
"""

from __future__ import annotations

from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.cache.kv import KVCache
from unmask.errors import UnmaskError
from unmask.models.tokenizer import TextCodec


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """What the engine must know about a checkpoint."""

    name: str  # as the user wrote it
    family: str  # 'llada', 'dream', 'toy', or a plug-in's own
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
    max_tokens: int | None = None  # from generation_config.json
    block_size: int | None = None  # from generation_config.json


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What one forward pass gives, in the model's dtype and aligned with positions."""

    logits: Float[Tensor, "b k v"]
    attention: Float[Tensor, "b n n"] | None = None
    shadow_logits: Float[Tensor, "b s v"] | None = None
    # Of the computed positions (`queries`, else all), before the head, if asked for. The next call may overwrite them.
    states: Float[Tensor, "b q w"] | None = None
    # The next pass over the same cache puts its logits in the same place.
    fleeting: bool = False


@runtime_checkable
class MaskedLM(Protocol):
    """A model the engine can decode with."""

    spec: ModelSpec

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def predict(
        self,
        tokens: Int[Tensor, "b n"],
        *,
        lengths: Int[Tensor, " b"] | None = None,
        at: Int[Tensor, "b k"] | None = None,
        cache: KVCache | None = None,
        queries: Int[Tensor, "b q"] | None = None,
        attention_layers: range | None = None,
        shadow: Int[Tensor, "b s"] | None = None,
        states: bool = False,
    ) -> Prediction:
        """Logits for the positions `at` (default: all) of canvases padded on the right to a common length.

        lengths: real length of each row; what lies behind is never seen. None: no padding. On the model's device, or,
                 for passes over whole canvases by a model that `packs`, on the host.
        cache:   without `queries`, a full pass fills it; with `queries`, only those positions (contiguous in each row,
                 padded by repeating the last one) are recomputed, written over the cache, and see the whole canvas.
                 A model that `packs` may be given them on the host, where rows differ in how many they have. Nobody
                 changes `queries`, `lengths`, `at` and the cache's places in place while they are in use.
        attention_layers: layers whose attention, averaged over heads and layers, is wanted as well.
        shadow:  positions to predict a second time as if their own token were masked (see policies/wino.py).
        states:  the states before the head are wanted as well; the engine asks for them with refresh='drift:X' only.
        """
        ...


def check_request(
    spec: ModelSpec,
    cache: KVCache | None,
    queries: Tensor | None,
    attention_layers: range | None,
    shadow: Tensor | None,
) -> None:
    """Refuse, in one line, a prediction that has no meaning."""
    if cache is not None and attention_layers is not None:
        raise UnmaskError("attention maps need the whole canvas: they cannot be had with a cache")
    if cache is not None and shadow is not None:
        raise UnmaskError("shadow predictions need the whole canvas: they cannot be had with a cache")
    if queries is not None and cache is None:
        raise UnmaskError("queries need a cache that a full pass has filled")
    if shadow is not None and spec.shifted:
        raise UnmaskError(f"{spec.family} predicts a position from the one before it, so it has no shadow predictions")


def prepares(model: MaskedLM) -> bool:
    """Whether `model.prepare(...)` is `predict` in two parts: what can be done early, and a call for the rest.

    It is, where one class defines both: whoever overrides `predict` alone wants to see every prediction.
    """
    owner = _owner_of_predict(model)
    return owner is not None and "prepare" in vars(owner)


def _owner_of_predict(model: MaskedLM) -> type | None:
    return next((kind for kind in type(model).__mro__ if "predict" in vars(kind)), None)


def packs(model: MaskedLM) -> bool:
    """Whether a pass computes no padding where the lengths of canvases, or the queries, are on the host.

    It does, where the class that defines `predict` says so: another `predict` may want them where the model is.
    """
    owner = _owner_of_predict(model)
    return owner is not None and vars(owner).get("packs", False)


def expect(model: MaskedLM, rows: int, length: int) -> None:
    """Say that passes over so many whole canvases of that length will come often, to a model that wants to know."""
    told: Any = getattr(model, "expect", None)
    if told is not None:
        told(rows, length)


def tells_states(model: MaskedLM) -> bool:
    """Whether `predict` can be asked for states."""
    parameters = signature(model.predict).parameters.values()
    return any(found.name == "states" or found.kind is Parameter.VAR_KEYWORD for found in parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A checkpoint ready for use."""

    model: MaskedLM
    codec: TextCodec


def key_mask(lengths: Int[Tensor, " b"] | None, length: int) -> Bool[Tensor, "b n"] | None:
    """Which keys may be seen; None when every row fills the canvas."""
    if lengths is None:
        return None
    return torch.arange(length, device=lengths.device) < lengths[:, None]
