"""What is measured: a checkpoint, or random weights in the shape of one; and what every measurement says about it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel

from unmask import __version__
from unmask.bench.measure import short
from unmask.bench.roofline import Ceilings
from unmask.engine.plan import quantization_of
from unmask.errors import UnknownName, UnmaskError
from unmask.models.base import LoadedModel, MaskedLM
from unmask.models.checkpoint.config import Config
from unmask.models.checkpoint.loading import TINY, choose_dtype, load_model
from unmask.models.checkpoint.tokenizer import TextCodec
from unmask.models.device import choose_device, device_name
from unmask.models.quantized import check_format
from unmask.models.random_weights import random_model

# The sizes of the published checkpoints, under the keys of their config.json.
PUBLISHED: dict[str, dict[str, Any]] = {
    "llada-8b": {
        "model_type": "llada",
        "d_model": 4096,
        "n_layers": 32,
        "n_heads": 32,
        "n_kv_heads": 32,
        "mlp_hidden_size": 12288,
        "vocab_size": 126464,
        "max_sequence_length": 4096,
        "rope_theta": 500000.0,
        "mask_token_id": 126336,
        "eos_token_id": 126081,
    },
    "dream-7b": {
        "model_type": "Dream",
        "hidden_size": 3584,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "intermediate_size": 18944,
        "vocab_size": 152064,
        "max_position_embeddings": 131072,
        "rope_theta": 1000000.0,
        "mask_token_id": 151666,
        "eos_token_id": 151643,
    },
    "sdar-8b": {
        "model_type": "sdar",
        "hidden_size": 4096,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 12288,
        "vocab_size": 151936,
        "max_position_embeddings": 32768,
        "rope_theta": 1000000.0,
        "block_size": 4,
        "mask_token_id": 151669,
        "eos_token_id": 151643,
    },
}
SHAPES = (*PUBLISHED, "tiny")


class Subject:
    """The model, and the machine it runs on."""

    def __init__(self, model: MaskedLM, ceilings: Ceilings) -> None:
        self.model = model.spec.name
        self.device = str(model.device)
        self.device_name = device_name(model.device)
        self.dtype = str(model.dtype).removeprefix("torch.")
        self.quantized = quantization_of(model)  # format of the blocks' weights; None: the dtype
        self.threads = torch.get_num_threads()
        self.copy_gb_per_s = ceilings.bytes_per_s / 1e9
        self.matmul_tflop_per_s = ceilings.flops_per_s / 1e12
        lasting = ceilings.lasting_flops_per_s
        self.lasting_matmul_tflop_per_s = None if lasting is None else lasting / 1e12  # without a pause, on a GPU
        self.unmask, self.torch = __version__, torch.__version__

    def in_words(self) -> str:
        speeds = f"copies {short(self.copy_gb_per_s)} GB/s, multiplies {short(self.matmul_tflop_per_s)} TFLOP/s"
        if self.lasting_matmul_tflop_per_s is not None:
            speeds += f" ({short(self.lasting_matmul_tflop_per_s)} without a pause)"
        numbers = self.dtype if self.quantized is None else f"{self.dtype}, {self.quantized} weights"
        return f"{self.model}: {self.device_name} ({self.device}), {numbers}, {self.threads} threads; {speeds}"


def open_model(name: str | None = None, **how: Any) -> MaskedLM:
    """As `open_loaded`, without the tokenizer."""
    return open_loaded(name, **how).model


def open_loaded(
    name: str | None = None,
    *,
    shape: str | None = None,
    random_weights: bool = False,
    device: str | None = None,
    dtype: str | None = None,
    quantize: str | None = None,
    seed: int = 0,
) -> LoadedModel:
    """A checkpoint by folder or name, or random weights in a checkpoint's or a published shape.

    With neither name nor shape: LLaDA-8B's shape on CUDA, tiny's elsewhere. The tokens of random weights are numbers.
    """
    if name is not None and shape is not None:
        raise UnmaskError(f"give a model or a shape, not both: {name!r} and --shape {shape}")
    if shape is not None and shape not in SHAPES:
        raise UnknownName("shape", shape, SHAPES)
    if shape is not None and not random_weights:
        raise UnmaskError(f"--shape {shape} says how large a model is, not what it knows: add --random-weights")
    place, wanted = choose_device(device), choose_dtype(dtype)
    check_format(quantize, place)
    if name is not None and not random_weights:
        return load_model(name, device=place, dtype=wanted, quantize=quantize)
    source = name if name is not None else shape or ("llada-8b" if place.type == "cuda" else "tiny")
    config = PUBLISHED[source] if name is None and source in PUBLISHED else _config_of(source)
    called = f"{Path(source).name} with random weights"
    default = torch.bfloat16 if place.type == "cuda" else torch.float32
    how: dict[str, Any] = {"seed": seed, "device": place, "dtype": wanted or default, "quantize": quantize}
    model = random_model(config, name=called, **how)
    return LoadedModel(model=model, codec=_numbers(model.spec.vocab_size))


def _numbers(vocab_size: int) -> TextCodec:
    """A tokenizer whose every token is its own number, so that different tokens are different texts."""
    tokenizer = Tokenizer(WordLevel({str(number): number for number in range(vocab_size)}, unk_token="0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return TextCodec(tokenizer)


def _config_of(name: str) -> Mapping[str, Any]:
    """The config of tiny or of a local checkpoint. Its weights are not needed, so nothing is downloaded."""
    folder = TINY if name == "tiny" else Path(name).expanduser()
    if not (folder / "config.json").is_file():
        raise UnmaskError(f"--random-weights needs --shape or a folder with a config.json, got {name!r}")
    return Config.read(folder / "config.json").values
