"""What a model family has to say, so that a checkpoint can be loaded: the contract for ours and for plug-ins.

A plug-in is a class that satisfies `Family`, takes no arguments, and is named by an entry point of the group
`unmask.models`; the entry point's name is the `model_type` in config.json, in lower case. `TransformerFamily` may be
its base if the architecture is transformer.py's. Neither knows files or devices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from unmask.models.base import ModelSpec
from unmask.models.checkpoint.config import Config
from unmask.models.checkpoint.tokenizer import TextCodec
from unmask.models.layers import Block, TransformerShape
from unmask.models.transformer import Transformer
from unmask.registry import Registry


@runtime_checkable
class Family(Protocol):
    """From a checkpoint's config to a model and its empty weights."""

    def spec(self, config: Config, codec: TextCodec, name: str) -> ModelSpec:
        """What the engine must know; refuses a config that asks for what the family's code does not do."""
        ...

    def build(self, config: Config, spec: ModelSpec) -> nn.Module:
        """A `base.MaskedLM` of that shape. Called on the meta device: allocate nothing by hand."""
        ...

    def slots(self, model: nn.Module) -> dict[str, Tensor]:
        """For each tensor name in the checkpoint, the parameter, or the part of one, that it fills."""
        ...


families: Registry[Family] = Registry("model family", "unmask.models")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorNames:
    """What a family calls the weights of the transformer; `layer` has a place for the number."""

    embedding: str
    norm: str
    head: str
    layer: str
    attention_norm: str
    query: str
    key: str
    value: str
    out: str
    mlp_norm: str
    gate: str
    up: str
    down: str
    query_norm: str = ""  # of models that normalise queries and keys
    key_norm: str = ""


class TransformerFamily(ABC):
    """A family whose model is transformer.py's under other names."""

    names: TensorNames

    @abstractmethod
    def shape(self, config: Config) -> TransformerShape: ...

    @abstractmethod
    def spec(self, config: Config, codec: TextCodec, name: str) -> ModelSpec: ...

    def build(self, config: Config, spec: ModelSpec) -> Transformer:
        return Transformer(self.shape(config), spec)

    def slots(self, model: nn.Module) -> dict[str, Tensor]:
        assert isinstance(model, Transformer)
        slots = {self.names.embedding: model.embedding.weight, self.names.norm: model.norm.weight}
        if model.head is not None:
            slots[self.names.head] = model.head.weight
        for number, block in enumerate(model.blocks):
            assert isinstance(block, Block)
            prefix = self.names.layer.format(number)
            slots |= {prefix + name: slot for name, slot in self._layer_slots(block, model.shape).items()}
        return slots

    def _layer_slots(self, block: Block, shape: TransformerShape) -> dict[str, Tensor]:
        names, projection = self.names, block.attention.qkv
        heads = [count * shape.head_width for count in (shape.n_heads, shape.n_kv_heads, shape.n_kv_heads)]
        parts = (names.query, names.key, names.value)
        slots = {f"{name}.weight": part for name, part in zip(parts, projection.weight.split(heads), strict=True)}
        if projection.bias is not None:
            slots |= {f"{name}.bias": part for name, part in zip(parts, projection.bias.split(heads), strict=True)}
        for name, norm in ((names.query_norm, block.attention.query_norm), (names.key_norm, block.attention.key_norm)):
            if norm is not None:
                slots[f"{name}.weight"] = norm.weight
        gate, up = block.gate_up.weight.chunk(2)
        return slots | {
            f"{names.attention_norm}.weight": block.attention_norm.weight,
            f"{names.out}.weight": block.attention.out.weight,
            f"{names.mlp_norm}.weight": block.mlp_norm.weight,
            f"{names.gate}.weight": gate,
            f"{names.up}.weight": up,
            f"{names.down}.weight": block.down.weight,
        }


def checked_heads(config: Config, width: int, n_heads: int, n_kv_heads: int, head_width: int) -> int:
    """The width of a head, after making sure that heads divide the model as attention needs."""
    if head_width * n_heads != width and config.get("head_dim") is None:
        raise config.error(f"{n_heads} heads do not divide a width of {width}")
    if n_heads % n_kv_heads:
        raise config.error(f"{n_kv_heads} key heads do not divide {n_heads} query heads")
    if head_width % 2:
        raise config.error(f"rotary positions need an even head width, got {head_width}")
    return head_width


def mask_id(config: Config, vocab_size: int, default: int | None = None) -> int:
    """The id of the mask token."""
    known = {} if default is None else {"default": default}
    return _checked(config, "mask_token_id", config.whole("mask_token_id", low=0, **known), vocab_size)


def end_ids(config: Config, codec: TextCodec, end_of_turn: str, vocab_size: int) -> list[int]:
    """The ids that end a text, the end-of-text token first."""
    ends = config.ids("eos_token_id") or codec.named_ids("eos_token")
    if not ends:
        raise config.error("the key 'eos_token_id' is missing, and the tokenizer names no eos_token")
    turn = codec.token_id(end_of_turn)
    return [_checked(config, "eos_token_id", end, vocab_size) for end in ends] + ([] if turn is None else [turn])


def _checked(config: Config, key: str, token_id: int, vocab_size: int) -> int:
    if token_id >= vocab_size:
        raise config.error(f"{key} {token_id} is outside the vocabulary of {vocab_size}")
    return token_id
