"""LLaDA (8B-Base, 8B-Instruct, 1.5, and our own tiny): config keys, tensor names and special tokens.

The checkpoints describe a wide range of models of which only one was ever published; every other choice is refused by
name, because running it as if it were the published one would give wrong text without a word.
"""

from __future__ import annotations

from unmask.models.base import ModelSpec
from unmask.models.checkpoint.config import Config
from unmask.models.checkpoint.tokenizer import TextCodec
from unmask.models.families.base import TensorNames, TransformerFamily, checked_heads, end_ids, families, mask_id
from unmask.models.layers import TransformerShape

MASK_ID = 126336
END_OF_TURN = "<|eot_id|>"

# First the published value, which is also assumed where the key is absent.
_IMPLEMENTED = {
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


@families.register("llada")
class LLaDA(TransformerFamily):
    names = TensorNames(
        embedding="model.transformer.wte.weight",
        norm="model.transformer.ln_f.weight",
        head="model.transformer.ff_out.weight",
        layer="model.transformer.blocks.{}.",
        attention_norm="attn_norm",
        query="q_proj",
        key="k_proj",
        value="v_proj",
        out="attn_out",
        mlp_norm="ff_norm",
        gate="ff_proj",
        up="up_proj",
        down="ff_out",
    )

    def shape(self, config: Config) -> TransformerShape:
        config.only_each(_IMPLEMENTED)
        width, n_heads = config.whole("d_model"), config.whole("n_heads")
        n_kv_heads = self._key_heads(config, n_heads)
        vocab_size = config.whole("vocab_size")
        return TransformerShape(
            width=width,
            hidden=config.whole("mlp_hidden_size", config.get("mlp_ratio", 4) * width),
            n_layers=config.whole("n_layers"),
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            head_width=checked_heads(config, width, n_heads, n_kv_heads, width // n_heads),
            vocab_size=config.whole("embedding_size", vocab_size, low=vocab_size),
            rope_theta=config.number("rope_theta", 10000.0),
            norm_eps=config.number("rms_norm_eps", 1e-5),
            qkv_bias=config.flag("include_qkv_bias", False),
            tied=config.flag("weight_tying", False),
        )

    def spec(self, config: Config, codec: TextCodec, name: str) -> ModelSpec:
        shape = self.shape(config)
        ends = end_ids(config, codec, END_OF_TURN, shape.vocab_size)
        return ModelSpec(
            name=name,
            family="llada",
            convention="llada",
            vocab_size=shape.vocab_size,
            n_layers=shape.n_layers,
            max_length=config.whole("max_sequence_length"),
            mask_id=mask_id(config, shape.vocab_size, MASK_ID),
            eos_id=ends[0],
            end_ids=frozenset(ends),
            bos_id=next(iter(codec.named_ids("bos_token")), None),
        )

    def _key_heads(self, config: Config, n_heads: int) -> int:
        shared = config.flag("multi_query_attention", False)
        n_kv_heads = config.whole("n_kv_heads", 1 if shared else n_heads)
        if shared and n_kv_heads != 1:
            raise config.error(f"multi_query_attention is true, but n_kv_heads is {n_kv_heads}")
        return n_kv_heads
