"""Write the trained network as a checkpoint in LLaDA's format: same config keys, same tensor names, safetensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizer import BOS, END_OF_TURN, EOS, MASK
from tokenizer import save as save_tokenizer
from tokenizers import Tokenizer
from torch import nn

# Values of the published checkpoints that describe the architecture and are the same for ours.
ARCHITECTURE = {
    "activation_type": "silu",
    "alibi": False,
    "alibi_bias_max": 8.0,
    "architectures": ["LLaDAModelLM"],
    "attention_dropout": 0.0,
    "attention_layer_norm": False,
    "attention_layer_norm_with_affine": True,
    "bias_for_layer_norm": False,
    "block_group_size": 1,
    "block_type": "llama",
    "embedding_dropout": 0.0,
    "flash_attention": False,
    "include_bias": False,
    "include_qkv_bias": False,
    "init_cutoff_factor": None,
    "init_device": "meta",
    "init_fn": "mitchell",
    "init_std": 0.02,
    "input_emb_norm": False,
    "layer_norm_type": "rms",
    "layer_norm_with_affine": True,
    "mlp_ratio": 4,
    "model_type": "llada",
    "multi_query_attention": None,
    "precision": "amp_bf16",
    "residual_dropout": 0.0,
    "rms_norm_eps": 1e-05,
    "rope": True,
    "rope_full_precision": True,
    "scale_logits": False,
    "torch_dtype": "float16",
    "use_cache": False,
    "weight_tying": False,
}
MAX_TOKENS = 128  # what a prompt gets where the caller does not say: room for every answer, as one block


def export(network: nn.Module, shape: dict[str, Any], tokenizer: Tokenizer, folder: Path) -> None:
    """Float16 keeps more of a small weight than bfloat16 does, at the same size."""
    save_tokenizer(tokenizer, folder)
    weights = {
        f"model.{name}": weight.detach().half().cpu().contiguous() for name, weight in network.state_dict().items()
    }
    if any(not torch.isfinite(weight).all() for weight in weights.values()):
        raise ValueError("a weight does not fit into float16")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    bos, eos, mask, turn = (tokenizer.token_to_id(token) for token in (BOS, EOS, MASK, END_OF_TURN))
    ids = {"bos_token_id": bos, "eos_token_id": eos, "pad_token_id": eos}
    config = ARCHITECTURE | shape | {"n_kv_heads": shape["n_heads"], "embedding_size": shape["vocab_size"]}
    config |= {"eos_token_id": eos, "pad_token_id": eos, "mask_token_id": mask}
    generation = ids | {
        "eos_token_id": [eos, turn],
        "mask_token_id": mask,
        "max_new_tokens": MAX_TOKENS,
        "block_length": MAX_TOKENS,
    }
    for name, values in (("config", config), ("generation_config", generation)):
        text = json.dumps(dict(sorted(values.items())), indent=2)
        (folder / f"{name}.json").write_text(text + "\n")
