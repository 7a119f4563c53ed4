"""What a model family has to say so that a checkpoint can be loaded: the contract for ours and for plug-ins.

A plug-in is a class that satisfies `Family` and takes no arguments. An entry point of the group `unmask.models` names
it; the entry point's own name is the `model_type` in config.json, in lower case. `TransformerFamily` may be its base if
the architecture is transformer.py's. Families know neither files nor devices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from torch import Tensor, nn

from unmask.models.base import ModelSpec
from unmask.models.checkpoint.config import Config
from unmask.models.checkpoint.tokenizer import TextCodec
from unmask.models.layers import TransformerShape
from unmask.models.transformer import Transformer
from unmask.registry import Registry


@runtime_checkable
class Family(Protocol):
    """From a checkpoint's config to a model and its empty weights."""

    def spec(self, config: Config, codec: TextCodec, name: str) -> ModelSpec:
        """What the engine must know. Refuses a config that asks for what the family's code does not do."""
        ...

    def build(self, config: Config, spec: ModelSpec) -> nn.Module:
        """A `base.MaskedLM` of that shape. Called on the meta device: allocate nothing by hand."""
        ...

    def slots(self, model: nn.Module) -> dict[str, Tensor]:
        """For each tensor name in the checkpoint, the parameter, or the part of one, that it fills."""
        ...


families: Registry[Family] = Registry("model family", "unmask.models")


class TransformerFamily(ABC):
    """A family whose model is transformer.py's. A subclass says what is particular about it."""

    family: ClassVar[str]
    convention: ClassVar[Literal["llada", "dream"]]
    # What the checkpoint calls each module. A module that it stores in parts has a name for each part.
    names: ClassVar[Mapping[str, str | tuple[str, ...]]]
    layer_prefix: ClassVar[str]  # before the names of a layer's modules, with a place for the layer's number
    # Config keys with the values that are implemented. The first is the published one, assumed where the key is absent.
    implemented: ClassVar[Mapping[str, tuple[Any, ...]]]
    length_key: ClassVar[str]  # config key for the number of positions
    end_of_turn: ClassVar[str]
    mask_id: ClassVar[int | None] = None  # of configs that do not say; None: the tokenizer's

    @abstractmethod
    def sizes(self, config: Config) -> TransformerShape:
        """The shape that the config's keys describe."""

    def quirks(self, config: Config, codec: TextCodec, ends: list[int]) -> dict[str, Any]:
        """Fields of the spec in which the family differs. `ends` are the ids that end a text, end-of-text first."""
        return {}

    def shape(self, config: Config) -> TransformerShape:
        """The shape, after making sure that all of it is implemented."""
        for key, accepted in self.implemented.items():
            config.only(key, *accepted)
        shape = self.sizes(config)
        if shape.head_width * shape.n_heads != shape.width and config.get("head_dim") is None:
            raise config.error(f"{shape.n_heads} heads do not divide a width of {shape.width}")
        if shape.n_heads % shape.n_kv_heads:
            raise config.error(f"{shape.n_kv_heads} key heads do not divide {shape.n_heads} query heads")
        if shape.head_width % 2:
            raise config.error(f"rotary positions need an even head width, got {shape.head_width}")
        return shape

    def spec(self, config: Config, codec: TextCodec, name: str) -> ModelSpec:
        shape = self.shape(config)
        mask_id = config.whole("mask_token_id", self.mask_id or codec.named_id("mask_token"), low=0)
        named, turn = codec.named_id("eos_token"), codec.token_id(self.end_of_turn)
        ends = config.ids("eos_token_id") or ([] if named is None else [named])
        if not ends:
            raise config.error("the key 'eos_token_id' is missing, and the tokenizer names no eos_token")
        for key, token_id in [("mask_token_id", mask_id), *(("eos_token_id", end) for end in ends)]:
            if token_id >= shape.vocab_size:
                raise config.error(f"{key} {token_id} is outside the vocabulary of {shape.vocab_size}")
        ends = ends if turn is None else [*ends, turn]
        common: dict[str, Any] = {
            "vocab_size": shape.vocab_size,
            "n_layers": shape.n_layers,
            "max_length": config.whole(self.length_key),
            "mask_id": mask_id,
            "eos_id": ends[0],
            "end_ids": frozenset(ends),
            "bos_id": codec.named_id("bos_token"),
        }
        own = self.quirks(config, codec, ends)
        return ModelSpec(name=name, family=self.family, convention=self.convention, **common | own)

    def build(self, config: Config, spec: ModelSpec) -> Transformer:
        return Transformer(self.shape(config), spec)

    def slots(self, model: nn.Module) -> dict[str, Tensor]:
        assert isinstance(model, Transformer)
        shape, slots = model.shape, {}
        heads = [count * shape.head_width for count in (shape.n_heads, shape.n_kv_heads, shape.n_kv_heads)]
        parts = {"attention.qkv": heads, "gate_up": [shape.hidden] * 2}
        for ours, parameter in model.named_parameters():
            module, _, kind = ours.rpartition(".")  # kind: weight or bias
            prefix = ""
            if module.startswith("blocks."):
                _, number, module = module.split(".", 2)
                prefix = self.layer_prefix.format(number)
            named = self.names[module]
            theirs = (named,) if isinstance(named, str) else named
            for name, part in zip(theirs, parameter.split(parts.get(module, len(parameter))), strict=True):
                slots[f"{prefix}{name}.{kind}"] = part
        return slots
