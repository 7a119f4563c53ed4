"""transformers' Llama and Qwen2 with the weights of our folders, and what the transformer is asked in its tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from unmask.cache.base import PassPlan, RowPlan
from unmask.models.checkpoint.loading import load_model
from unmask.models.transformer import Transformer

LLAMA_NAMES = {
    "model.transformer.wte": "model.embed_tokens",
    "model.transformer.ln_f": "model.norm",
    "model.transformer.ff_out": "lm_head",
    "model.transformer.blocks": "model.layers",
    "attn_norm": "input_layernorm",
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ff_norm": "post_attention_layernorm",
    "ff_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "ff_out": "mlp.down_proj",
}


def loaded(folder: Path, **options: Any) -> Transformer:
    model = load_model(folder, device="cpu", **options).model
    assert isinstance(model, Transformer)
    return model


def canvas(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 270, (rows, length), generator=torch.Generator().manual_seed(seed))


def whole(*lengths: int) -> PassPlan:
    """Of rows of these lengths."""
    return PassPlan.whole(list(lengths), torch.device("cpu"))


def part(*rows: tuple[int, int, int]) -> PassPlan:
    """Of rows (first position, end, keys seen)."""
    plans = tuple(RowPlan(span=(first, end), visible=seen) for first, end, seen in rows)
    return PassPlan(plans, torch.device("cpu"))


def as_llama(folder: Path, model: Transformer, **options: Any) -> Any:
    """transformers' Llama with the folder's weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    weights = {llama_name(name): tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    return oracle(LlamaForCausalLM(LlamaConfig(**sizes(model), **options)), weights)


def as_qwen2(folder: Path, model: Transformer) -> Any:
    """transformers' Qwen2 with the folder's weights."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return oracle(Qwen2ForCausalLM(Qwen2Config(**sizes(model))), load_file(folder / "model.safetensors"))


def sizes(model: Transformer) -> dict[str, Any]:
    shape = model.shape
    return {
        "hidden_size": shape.width,
        "intermediate_size": shape.hidden,
        "num_hidden_layers": shape.n_layers,
        "num_attention_heads": shape.n_heads,
        "num_key_value_heads": shape.n_kv_heads,
        "vocab_size": shape.vocab_size,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "rms_norm_eps": shape.norm_eps,
        "tie_word_embeddings": shape.tied,
    }


def llama_name(name: str) -> str:
    for ours, theirs in LLAMA_NAMES.items():
        if ours.startswith("model.") and name.startswith(f"{ours}."):
            name = name.replace(ours, theirs, 1)
    head, _, last = name.rpartition(".")
    stem, _, leaf = head.rpartition(".")
    return f"{stem}.{LLAMA_NAMES[leaf]}.{last}" if leaf in LLAMA_NAMES and stem.startswith("model.layers") else name


def oracle(model: Any, weights: dict[str, Tensor]) -> Any:
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    return model.eval()


def bidirectional(model: Any, tokens: Tensor) -> Tensor:
    """The oracle's logits with an additive mask that hides nothing: it lifts causality under every attention kernel."""
    length = tokens.shape[1]
    return model(tokens, attention_mask=torch.zeros(tokens.shape[0], 1, length, length), use_cache=False).logits


CLOSE = {"atol": 1e-4, "rtol": 0.0}
