"""What Dream and SDAR take over from Qwen: config keys, tensor names and the end of a turn. No family by itself."""

from __future__ import annotations

from typing import ClassVar

from unmask.models.checkpoint.config import Config, shown
from unmask.models.families.base import TransformerFamily
from unmask.models.layers import TransformerShape


class QwenFamily(TransformerFamily):
    convention = "dream"
    length_key = "max_position_embeddings"
    end_of_turn = "<|im_end|>"
    implemented: ClassVar = {"hidden_act": ("silu",), "use_sliding_window": (False,), "rope_scaling": (None,)}
    layer_prefix = "model.layers.{}."
    names: ClassVar = {
        "embedding": "model.embed_tokens",
        "norm": "model.norm",
        "head": "lm_head",
        "attention_norm": "input_layernorm",
        "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "attention.query_norm": "self_attn.q_norm",
        "attention.key_norm": "self_attn.k_norm",
        "attention.out": "self_attn.o_proj",
        "mlp_norm": "post_attention_layernorm",
        "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
        "down": "mlp.down_proj",
    }
    qkv_bias: ClassVar[bool] = False
    qk_norm: ClassVar[bool] = False

    def sizes(self, config: Config) -> TransformerShape:
        width, n_heads = config.whole("hidden_size"), config.whole("num_attention_heads")
        kinds = config.get("layer_types", [])
        for kind in kinds if isinstance(kinds, list) else [kinds]:
            if kind != "full_attention":
                raise config.error(f"layer_types holds {shown(kind)}, but only 'full_attention' is supported")
        rotary = config.part("rope_parameters")  # where newer files keep the rotary base, and how it is scaled
        rotary.only("rope_type", "default")
        return TransformerShape(
            width=width,
            hidden=config.whole("intermediate_size"),
            n_layers=config.whole("num_hidden_layers"),
            n_heads=n_heads,
            n_kv_heads=config.whole("num_key_value_heads", n_heads),
            head_width=config.whole("head_dim", width // n_heads),
            vocab_size=config.whole("vocab_size"),
            rope_theta=rotary.number("rope_theta", config.number("rope_theta", 10000.0)),
            norm_eps=config.number("rms_norm_eps", 1e-6),
            qkv_bias=self.qkv_bias,
            qk_norm=self.qk_norm,
            tied=config.flag("tie_word_embeddings", False),
        )
