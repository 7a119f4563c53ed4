"""From a name or a folder to a model on a device: the one way in for checkpoints.

All mistakes are found before memory is taken: in files, config, tokenizer, tensor names and shapes. So is a model that
does not fit. Never runs code from a checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unmask.errors import CheckpointError, UnmaskError, check_known, one_line
from unmask.models.base import LoadedModel, MaskedLM, ModelSpec
from unmask.models.checkpoint.config import Config
from unmask.models.checkpoint.folder import checkpoint_folder
from unmask.models.checkpoint.tokenizer import TextCodec
from unmask.models.checkpoint.weights import Weights
from unmask.models.device import check_memory, choose_device, memory_errors
from unmask.models.families import family_of
from unmask.models.quantized import QuantizedLinear, bytes_to_load, check_format, linears_of

MOST_LAYERS = 1000
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_model(
    path_or_name: str | Path,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    quantize: str | None = None,
    revision: str | None = None,
    token: str | None = None,
    cache_dir: str | Path | None = None,
    on_bytes: Callable[[int, int], None] = lambda done, total: None,
) -> LoadedModel:
    """A model by the name 'tiny' or 'toy', a checkpoint folder, or a name on the hub.

    device: default CUDA if there is one, else MPS, else the CPU.
    dtype:  default float32 on CPU and MPS, the checkpoint's own on CUDA.
    quantize: 'fp8' or 'int8' keeps the weights of the blocks in 8 bits (see quantized.py); the rest has the dtype.
    on_bytes: called after each tensor with the bytes of weights that were read, and how many there are.
    """
    place, wanted = choose_device(device), choose_dtype(dtype)
    check_format(quantize, place)
    name = str(path_or_name)
    if name == "toy":
        for option, value in {"revision": revision, "quantize": quantize}.items():
            if value is not None:
                raise UnmaskError(f"{option}={value!r} applies to checkpoints, and 'toy' is none; leave it out")
        from unmask.models.toy import load_toy

        return load_toy(device=place, dtype=wanted or torch.float32)
    folder = checkpoint_folder(name, revision=revision, token=token, cache_dir=cache_dir)
    if not (folder / "config.json").exists():
        raise CheckpointError(f"{folder}: there is no config.json, so this is not a checkpoint")
    config = Config.read(folder / "config.json")
    family = family_of(config)
    if "quantization_config" in config.values:
        raise config.error("quantised checkpoints are not supported (quantization_config)")
    weights, codec = Weights(folder, on_bytes), TextCodec.from_folder(folder)
    spec = _checked_spec(family.spec(config, codec, name), folder, config, codec, len(weights.stored))
    named = str(config.get("dtype", config.get("torch_dtype"))).removeprefix("torch.")
    default = DTYPES.get(named, weights.dtype()) if place.type == "cuda" else torch.float32
    try:
        with torch.device("meta"):
            model = family.build(config, spec).to(wanted or default)
    except (RuntimeError, OverflowError) as error:  # a tensor with more numbers than can be counted
        raise config.error(f"its sizes make no model: {one_line(error)}") from error
    weights.check(family.slots(model))
    loaded = materialize(model, name, place, quantize, tensors=lambda: family.slots(model), fill=weights.fill)
    return LoadedModel(model=loaded, codec=codec)


def choose_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    """The dtype asked for; None leaves the choice to device and checkpoint."""
    if dtype is None:
        return None
    name = str(dtype).removeprefix("torch.")
    check_known("dtype", [name], DTYPES)
    return DTYPES[name]


def _checked_spec(spec: ModelSpec, folder: Path, config: Config, codec: TextCodec, tensors: int) -> ModelSpec:
    """The family's spec with what the folder's files recommend, if config, tokenizer and weights go together."""
    generation = Config.read(folder / "generation_config.json", optional=True)
    for key, field in {"max_new_tokens": "max_tokens", "block_length": "block_size"}.items():
        if key in generation.values:
            spec = replace(spec, **{field: generation.whole(key)})
    if codec.highest_id >= spec.vocab_size:
        ends = f"the vocabulary ends at {spec.vocab_size}"
        raise config.error(f"the tokenizer has ids up to {codec.highest_id}, but {ends}")
    if spec.n_layers > min(tensors, MOST_LAYERS):
        stored = f"the weights are {tensors} tensors, and {MOST_LAYERS} layers are the most"
        raise config.error(f"it asks for {spec.n_layers} layers, but {stored}")
    names = spec.name, str(folder.resolve()), config.get("_name_or_path", "")
    return replace(spec, converses=_converses(codec, *names))


def _converses(codec: TextCodec, *names: Any) -> bool:
    """Whether a checkpoint was trained on conversations.

    The first of its names that tells decides, else its template: a base model's tokenizer often has one too, but there
    the token that ends a turn does not end the text.
    """
    if codec.chat_template is None:
        return False
    for name in names:
        for part in reversed(re.split(r"[/\\]+", str(name).lower())[-3:]):  # models--ORG--NAME/snapshots/HASH
            if said := re.search(r"instruct|chat|llada-1\.5|(?<![a-z])base(?![a-z])", part):
                return said[0] != "base"
    return codec.special_tokens.get("eos_token", "\0") in codec.chat_template


@torch.no_grad()
def materialize(
    model: nn.Module,
    name: str,
    device: torch.device,
    quantize: str | None,
    *,
    tensors: Callable[[], Mapping[str, Tensor]],
    fill: Callable[[Mapping[str, Tensor]], None],
) -> MaskedLM:
    """Give a model on the meta device memory and weights, if they fit; it is then ready for inference.

    `tensors` lists the model's tensors by name. `fill` writes weights to them, module after module, so that no more
    than one layer at a time waits to be quantised.
    """
    needed = bytes_to_load(model, quantize)
    check_memory(needed, device, what=name)
    filled: set[str] = set()
    linears = [] if quantize is None else linears_of(model)
    layers: dict[nn.Module, nn.Module] = {}  # what takes the place of a linear layer
    with memory_errors(needed, device, what=name):
        for part in model.modules():
            part.to_empty(device=device, recurse=False)
            if not [*part.parameters(recurse=False)]:
                continue
            fresh = {key: tensor for key, tensor in tensors().items() if not tensor.is_meta and key not in filled}
            fill(fresh)
            filled.update(fresh)
            if quantize is not None and isinstance(part, nn.Linear) and part in linears:
                layers[part] = QuantizedLinear(part, quantize)
                part.weight = nn.Parameter(part.weight.to("meta"), requires_grad=False)
    for parent in [*model.modules()]:  # last, since `tensors` may expect the layers that the model was built with
        for attribute, layer in parent.named_children():
            setattr(parent, attribute, layers.get(layer, layer))
    model.quantized = quantize  # ty: ignore[invalid-assignment]
    model.eval().requires_grad_(False)
    assert isinstance(model, MaskedLM)
    return model
