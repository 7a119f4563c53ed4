"""LLaDA (8B-Base, 8B-Instruct, 1.5, and our own tiny): config keys, tensor names and special tokens.

The configs can describe many models, of which only one was ever published. Every other choice is refused by name:
running it like the published one would silently give wrong text.
"""

from __future__ import annotations

from typing import ClassVar

from unmask.models.checkpoint.config import Config
from unmask.models.families.base import TransformerFamily, families
from unmask.models.layers import TransformerShape


@families.register("llada")
class LLaDA(TransformerFamily):
    family = "llada"
    convention = "llada"
    length_key = "max_sequence_length"
    end_of_turn = "<|eot_id|>"
    mask_id = 126336
    implemented: ClassVar = {
        "block_type": ("llama",),
        "block_group_size": (1,),
        "layer_norm_type": ("rms",),
        "layer_norm_with_affine": (True,),
        "bias_for_layer_norm": (False,),
        "attention_layer_norm": (False,),
        "input_emb_norm": (False,),
        "activation_type": ("silu", "swiglu"),  # two words for the gated unit that this block type always has
        "include_bias": (False,),
        "rope": (True,),
        "rope_full_precision": (True,),
        "alibi": (False,),
        "clip_qkv": (None,),
        "scale_logits": (False,),
    }
    layer_prefix = "model.transformer.blocks.{}."
    names: ClassVar = {
        "embedding": "model.transformer.wte",
        "norm": "model.transformer.ln_f",
        "head": "model.transformer.ff_out",
        "attention_norm": "attn_norm",
        "attention.qkv": ("q_proj", "k_proj", "v_proj"),
        "attention.out": "attn_out",
        "mlp_norm": "ff_norm",
        "gate_up": ("ff_proj", "up_proj"),
        "down": "ff_out",
    }

    def sizes(self, config: Config) -> TransformerShape:
        width, n_heads, vocab_size = config.whole("d_model"), config.whole("n_heads"), config.whole("vocab_size")
        shared = config.flag("multi_query_attention", False)
        n_kv_heads = config.whole("n_kv_heads", 1 if shared else n_heads)
        if shared and n_kv_heads != 1:
            raise config.error(f"multi_query_attention is true, but n_kv_heads is {n_kv_heads}")
        return TransformerShape(
            width=width,
            hidden=config.whole("mlp_hidden_size", round(config.number("mlp_ratio", 4) * width)),
            n_layers=config.whole("n_layers"),
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            head_width=width // n_heads,
            vocab_size=config.whole("embedding_size", vocab_size, low=vocab_size),
            rope_theta=config.number("rope_theta", 10000.0),
            norm_eps=config.number("rms_norm_eps", 1e-5),
            qkv_bias=config.flag("include_qkv_bias", False),
            tied=config.flag("weight_tying", False),
        )
