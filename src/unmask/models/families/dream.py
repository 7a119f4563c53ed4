"""Dream (v0-Base, v0-Instruct) and its relatives Dream-Coder and DiffuCoder: Qwen2 without its causal mask.

Their head predicts the next position, which `ModelSpec.shifted` says and the transformer undoes. config.json's
`bos_token_id` is a leftover of Qwen2; the token to put before a prompt is the tokenizer's.
"""

from __future__ import annotations

from unmask.models.base import ModelSpec
from unmask.models.checkpoint.config import Config
from unmask.models.checkpoint.tokenizer import TextCodec
from unmask.models.families.base import TensorNames, TransformerFamily, checked_heads, end_ids, families, mask_id
from unmask.models.layers import TransformerShape

BEGIN_OF_TEXT = "<|beginoftext|>"
END_OF_TURN = "<|im_end|>"

# First the published value, which is also assumed where the key is absent.
_IMPLEMENTED = {
    "hidden_act": ("silu",),
    "use_sliding_window": (False,),
    "use_mrope": (False,),
    "rope_scaling": (None,),
    "block_size": (None,),  # relatives that denoise block after block under a block-causal mask
}


QWEN_NAMES = TensorNames(
    embedding="model.embed_tokens.weight",
    norm="model.norm.weight",
    head="lm_head.weight",
    layer="model.layers.{}.",
    attention_norm="input_layernorm",
    query="self_attn.q_proj",
    key="self_attn.k_proj",
    value="self_attn.v_proj",
    query_norm="self_attn.q_norm",
    key_norm="self_attn.k_norm",
    out="self_attn.o_proj",
    mlp_norm="post_attention_layernorm",
    gate="mlp.gate_proj",
    up="mlp.up_proj",
    down="mlp.down_proj",
)


@families.register("dream")
class Dream(TransformerFamily):
    names = QWEN_NAMES

    def shape(self, config: Config) -> TransformerShape:
        config.only_each(_IMPLEMENTED)
        for kind in config.get("layer_types", []):
            if kind != "full_attention":
                raise config.error(f"layer_types holds {kind!r}, but only 'full_attention' is supported")
        width, n_heads = config.whole("hidden_size"), config.whole("num_attention_heads")
        n_kv_heads = config.whole("num_key_value_heads", n_heads)
        head_width = config.whole("head_dim", width // n_heads)
        return TransformerShape(
            width=width,
            hidden=config.whole("intermediate_size"),
            n_layers=config.whole("num_hidden_layers"),
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            head_width=checked_heads(config, width, n_heads, n_kv_heads, head_width),
            vocab_size=config.whole("vocab_size"),
            rope_theta=rope_theta(config),
            norm_eps=config.number("rms_norm_eps", 1e-6),
            qkv_bias=True,
            tied=config.flag("tie_word_embeddings", False),
        )

    def spec(self, config: Config, codec: TextCodec, name: str) -> ModelSpec:
        shape = self.shape(config)
        ends = end_ids(config, codec, END_OF_TURN, shape.vocab_size)
        begin = next(iter(codec.named_ids("bos_token")), codec.token_id(BEGIN_OF_TEXT))
        return ModelSpec(
            name=name,
            family="dream",
            convention="dream",
            vocab_size=shape.vocab_size,
            n_layers=shape.n_layers,
            max_length=config.whole("max_position_embeddings"),
            mask_id=mask_id(config, shape.vocab_size, next(iter(codec.named_ids("mask_token")), None)),
            eos_id=ends[0],
            end_ids=frozenset(ends),
            bos_id=begin,
            add_bos=begin is not None,
            shifted=True,
        )


def rope_theta(config: Config) -> float:
    """Newer files keep the frequency, and what they do to it, in an object of its own."""
    rotary = Config(config.get("rope_parameters", {}), f"{config.source}: rope_parameters")
    rotary.only("rope_type", "default")
    return rotary.number("rope_theta", config.number("rope_theta", 10000.0))
