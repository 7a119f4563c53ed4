"""What is measured: a checkpoint, or random weights in the shape of one; and what every measurement says about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel

from unmask import __version__
from unmask.bench.measure import short
from unmask.bench.roofline import Ceilings, Floor, ModelCall, floor, measure_ceilings
from unmask.engine.plan import quantization_of
from unmask.errors import UnknownName, UnmaskError
from unmask.models.base import LoadedModel, MaskedLM
from unmask.models.checkpoint.config import Config
from unmask.models.checkpoint.folder import TINY
from unmask.models.checkpoint.loading import choose_dtype, load_model
from unmask.models.checkpoint.tokenizer import TextCodec
from unmask.models.device import choose_device, device_name
from unmask.models.quantized import check_format
from unmask.models.random_weights import random_model
from unmask.models.transformer import Transformer

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
    """A model, the machine it runs on, and how fast that machine could be at best."""

    def __init__(self, model: MaskedLM, ceilings: Ceilings | None) -> None:
        self.model, self.ceilings = model, ceilings or measure_ceilings(model.device, model.dtype)
        self.quantized = quantization_of(model)  # format of the blocks' weights; None: the dtype

    def floor(self, calls: Sequence[ModelCall], *, lasting: bool = False) -> Floor | None:
        """The least time of a pass's model calls; None for a model that is not a transformer of ours.

        `lasting`: with products at the rate that a GPU keeps up for seconds; None where that was not measured. What a
        policy asks for beyond the logits of its block (attention maps, say) is not counted.
        """
        ceilings = self.ceilings.lasting() if lasting else self.ceilings
        if ceilings is None or not isinstance(self.model, Transformer):
            return None
        return floor(self.model.shape, calls, self.model.dtype.itemsize, ceilings, quantized=self.quantized is not None)

    def figures(self) -> dict[str, Any]:
        """What every measurement says of model and machine."""
        model, lasting = self.model, self.ceilings.lasting_flops_per_s
        return {
            "model": model.spec.name,
            "device": str(model.device),
            "device_name": device_name(model.device),
            "dtype": str(model.dtype).removeprefix("torch."),
            "quantized": self.quantized,
            "threads": torch.get_num_threads(),
            "copy_gb_per_s": self.ceilings.bytes_per_s / 1e9,
            "matmul_tflop_per_s": self.ceilings.flops_per_s / 1e12,
            "lasting_matmul_tflop_per_s": None if lasting is None else lasting / 1e12,  # without a pause, on a GPU
            "unmask": __version__,
            "torch": torch.__version__,
        }

    def in_words(self) -> str:
        told = self.figures()
        speeds = f"copies {short(told['copy_gb_per_s'])} GB/s, multiplies {short(told['matmul_tflop_per_s'])} TFLOP/s"
        if (lasting := told["lasting_matmul_tflop_per_s"]) is not None:
            speeds += f" ({short(lasting)} without a pause)"
        numbers = told["dtype"] if self.quantized is None else f"{told['dtype']}, {self.quantized} weights"
        return (
            f"{told['model']}: {told['device_name']} ({told['device']}), {numbers}, {told['threads']} threads; {speeds}"
        )


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
