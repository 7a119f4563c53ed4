"""SDAR and TraDo: Qwen3 under a block-causal mask, blocks counted from position 0.

A block sees itself and the blocks before it, so keys and values of finished blocks are kept for good (cache='exact').
Their head predicts its own position, and sampling follows Dream's: the confidence of a drawn token is its probability
under the distribution that it was drawn from.
"""

from __future__ import annotations

from unmask.models.base import ModelSpec
from unmask.models.checkpoint.config import Config
from unmask.models.checkpoint.tokenizer import TextCodec
from unmask.models.families.base import TransformerFamily, checked_heads, end_ids, families, mask_id
from unmask.models.families.dream import QWEN_NAMES, rope_theta
from unmask.models.layers import TransformerShape

END_OF_TURN = "<|im_end|>"
BLOCK_SIZE = 4  # of the checkpoints that do not say

# First the published value, which is also assumed where the key is absent.
_IMPLEMENTED = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "use_sliding_window": (False,),
    "rope_scaling": (None,),
    "fuse_cross_entropy": (True, False),  # how the loss is computed in training
}


@families.register("sdar")
class SDAR(TransformerFamily):
    names = QWEN_NAMES

    def shape(self, config: Config) -> TransformerShape:
        config.only_each(_IMPLEMENTED)
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
            qk_norm=True,
            tied=config.flag("tie_word_embeddings", False),
        )

    def spec(self, config: Config, codec: TextCodec, name: str) -> ModelSpec:
        shape = self.shape(config)
        ends = end_ids(config, codec, END_OF_TURN, shape.vocab_size)
        padding = config.ids("pad_token_id")  # of the ids that end a text, the one that stands behind its end
        return ModelSpec(
            name=name,
            family="sdar",
            convention="dream",
            vocab_size=shape.vocab_size,
            n_layers=shape.n_layers,
            max_length=config.whole("max_position_embeddings"),
            mask_id=mask_id(config, shape.vocab_size, next(iter(codec.named_ids("mask_token")), None)),
            eos_id=next((end for end in ends if end in padding), ends[0]),
            end_ids=frozenset(ends),
            causal=True,
            block_size=config.whole("block_size", BLOCK_SIZE),
        )
