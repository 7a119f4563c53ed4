"""Dream (v0-Base, v0-Instruct) and its relatives Dream-Coder and DiffuCoder: Qwen2 without its causal mask.

The head predicts the next position: `ModelSpec.shifted` says so, and the transformer aligns it. config.json's
`bos_token_id` is a leftover of Qwen2; the token to put before a prompt is the tokenizer's. SDAR shares `QwenFamily`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from unmask.models.checkpoint.config import Config, shown
from unmask.models.checkpoint.tokenizer import TextCodec
from unmask.models.families.base import TransformerFamily, families
from unmask.models.layers import TransformerShape


class QwenFamily(TransformerFamily):
    """Config keys, tensor names and the end of a turn that Dream and SDAR take over from Qwen; no family by itself."""

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


@families.register("dream")
class Dream(QwenFamily):
    family = "dream"
    # Relatives with a block_size decode block after block under a block-causal mask. They are refused.
    implemented: ClassVar = QwenFamily.implemented | {"use_mrope": (False,), "block_size": (None,)}
    qkv_bias = True

    def quirks(self, config: Config, codec: TextCodec, ends: list[int]) -> dict[str, Any]:
        named = codec.named_id("bos_token")
        begin = codec.token_id("<|beginoftext|>") if named is None else named
        return {"bos_id": begin, "add_bos": begin is not None, "shifted": True}
