"""What is measured: a checkpoint, or random weights in the shape of one, and the requests that it decodes.

Requests are random prompts of given lengths, in every combination of batch, cache and refresh. What they say does not
matter, so random weights will do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel

from unmask import __version__
from unmask.bench.measure import Ceilings, Floor, Measurement, ModelCall, floor, measure_ceilings, short
from unmask.bench.workload import Workload
from unmask.engine.plan import Plan, plan, quantization_of
from unmask.engine.prompts import check_length
from unmask.engine.scheduler import Request
from unmask.errors import UnmaskError, check_known
from unmask.models.base import LoadedModel, MaskedLM
from unmask.models.checkpoint.config import Config
from unmask.models.checkpoint.folder import TINY
from unmask.models.checkpoint.loading import choose_dtype, load_model
from unmask.models.checkpoint.tokenizer import TextCodec
from unmask.models.device import check_memory, choose_device, device_name
from unmask.models.quantized import check_format
from unmask.models.random_weights import random_model
from unmask.models.transformer import Transformer
from unmask.policies import WHOLE_CANVAS, Fixed, describe, needs_of
from unmask.settings import Settings

# The sizes of the published checkpoints, under the keys of their config.json.
# fmt: off
PUBLISHED: dict[str, dict[str, Any]] = {
    "llada-8b": {
        "model_type": "llada", "d_model": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 32,
        "mlp_hidden_size": 12288, "vocab_size": 126464, "max_sequence_length": 4096, "rope_theta": 500000.0,
        "mask_token_id": 126336, "eos_token_id": 126081,
    },
    "dream-7b": {
        "model_type": "Dream", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
        "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064, "max_position_embeddings": 131072,
        "rope_theta": 1000000.0, "mask_token_id": 151666, "eos_token_id": 151643,
    },
    "sdar-8b": {
        "model_type": "sdar", "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288, "vocab_size": 151936,
        "max_position_embeddings": 32768, "rope_theta": 1000000.0, "block_size": 4, "mask_token_id": 151669,
        "eos_token_id": 151643,
    },
}
# fmt: on
SHAPES = (*PUBLISHED, "tiny")
_NEVER_REFRESHED = ("none", "exact")


class Subject:
    """A model, the machine it runs on, and how fast that machine could be at best."""

    def __init__(self, model: MaskedLM, ceilings: Ceilings | None) -> None:
        self.model, self.ceilings = model, ceilings or measure_ceilings(model.device, model.dtype)
        self.quantized = quantization_of(model)  # format of the blocks' weights; None: the dtype

    def floor(self, calls: Sequence[ModelCall]) -> Floor:
        """The least time of these model calls; not known for a model that is not a transformer of ours.

        What a policy asks for beyond the logits of its block (attention maps, say) is not counted.
        """
        if not isinstance(self.model, Transformer):
            return Floor()
        quantized = self.quantized is not None
        return floor(self.model.shape, calls, self.model.dtype.itemsize, self.ceilings, quantized=quantized)

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
        machine = f"{told['device_name']} ({told['device']}), {numbers}, {told['threads']} threads"
        return f"{told['model']}: {machine}; {speeds}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Random prompts of these lengths, the longest first, decoded by one plan."""

    plan: Plan
    prompt_lengths: tuple[int, ...]

    @property
    def batch(self) -> int:
        return len(self.prompt_lengths)

    @property
    def cache(self) -> str:
        return self.plan.call_kind.cache

    def requests(self) -> list[Request]:
        """New requests, with the same prompts at every call."""
        spec, generator = self.plan.spec, torch.Generator().manual_seed(self.plan.settings.seed)
        ids = torch.randint(spec.vocab_size - 1, (self.batch, self.prompt_lengths[0]), generator=generator)
        ids += ids >= spec.mask_id
        prompts = [prompt[:length] for prompt, length in zip(ids.tolist(), self.prompt_lengths, strict=True)]
        masks = [spec.mask_id] * self.plan.max_tokens
        return [Request(canvas=self.plan.canvas(prompt + masks), plan=self.plan) for prompt in prompts]

    @property
    def prompt_in_words(self) -> str:
        return "-".join(str(length) for length in sorted({self.prompt_lengths[0], self.prompt_lengths[-1]}))

    def in_words(self) -> str:
        refresh = "" if self.plan.settings.refresh == "block" else f", refresh {self.plan.settings.refresh}"
        return f"prompt {self.prompt_in_words}, batch {self.batch}, cache {self.cache}{refresh}"

    def measured(self, subject: Subject, figures: dict[str, Any], row: dict[str, Any]) -> Measurement:
        """The figures and the line of a table, beside what was measured and its sizes."""
        settings = self.plan.settings
        sizes = {"policy": describe(self.plan.policy), "batch": self.batch}
        sizes |= {"prompt_tokens": self.prompt_lengths[0], "shortest_prompt": self.prompt_lengths[-1]}
        sizes |= {key: getattr(settings, key) for key in ("max_tokens", "block_size", "cache", "refresh", "seed")}
        refresh = "" if self.cache in _NEVER_REFRESHED else settings.refresh
        shown = {"prompt": self.prompt_in_words, "batch": self.batch, "cache": self.cache, "refresh": refresh}
        return Measurement(title=subject.in_words(), figures=subject.figures() | sizes | figures, rows=[shown | row])


def loads_of(workload: Workload, model: MaskedLM) -> list[Load]:
    """Every combination; raises if the model cannot decode one. A cache that is never refreshed comes once."""
    block_size = workload.block_size or (model.spec.block_size if model.spec.causal else None) or 32
    # Unless a policy is given, all models and versions of the code do the same work, however sure the model is. A short
    # last block takes as many passes as the others, if it has that many positions.
    policy = workload.policy or Fixed(passes=max(1, block_size // 4))
    usable = ("none", "exact") if model.spec.causal else ("none", "prefix", "dual")
    sizes: dict[str, Any] = {"max_tokens": workload.max_tokens, "block_size": block_size, "seed": workload.seed}
    loads = [
        Load(
            plan=plan(model, policy, Settings(cache=cache, refresh=refresh, **sizes)),
            prompt_lengths=_spread(workload.shortest_prompt or longest, longest, batch),
        )
        for longest in workload.prompt_tokens
        for batch in workload.batches
        for cache in workload.caches or (usable[:1] if needs_of(policy) & WHOLE_CANVAS else usable)
        for refresh in (("block",) if cache in _NEVER_REFRESHED else workload.refreshes)
    ]
    check_length(model.spec, max(workload.prompt_tokens), workload.max_tokens)
    if model.device.type == "cpu":  # a full GPU raises an error; here the system would kill the process
        for load in loads:
            instead = "use a smaller batch or fewer tokens"
            check_memory(_least_bytes(load, model), model.device, what=load.in_words(), instead=instead)
    return loads


def _least_bytes(load: Load, model: MaskedLM) -> int:
    """The bytes that a pass over whole canvases holds at once: states of a layer or logits, and the cache."""
    plan, vocabulary = load.plan, model.spec.vocab_size
    length = plan.max_tokens + load.prompt_lengths[-1]
    if not isinstance(model, Transformer):
        return model.dtype.itemsize * load.batch * length * vocabulary
    shape = model.shape
    states = length * (2 * shape.width + 4 * shape.hidden)
    predicted = length if plan.call_kind.whole else min(plan.block_size, plan.max_tokens)
    stored = 0 if load.cache == "none" else 2 * shape.n_layers * shape.n_kv_heads * shape.head_width * length
    return model.dtype.itemsize * load.batch * (max(states, predicted * vocabulary) + stored)


def _spread(shortest: int, longest: int, count: int) -> tuple[int, ...]:
    """So many lengths at even distances, the longest first."""
    return tuple(longest - round((longest - shortest) * at / max(1, count - 1)) for at in range(count))


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
    if shape is not None:
        check_known("shape", [shape], SHAPES)
        if name is not None:
            raise UnmaskError(f"give a model or a shape, not both: {name!r} and --shape {shape}")
        if not random_weights:
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
