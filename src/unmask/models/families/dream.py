"""Dream (v0-Base, v0-Instruct) and its relatives Dream-Coder and DiffuCoder: Qwen2 without its causal mask.

The head predicts the next position: `ModelSpec.shifted` says so, and the transformer aligns it. config.json's
`bos_token_id` is a leftover of Qwen2; the token to put before a prompt is the tokenizer's.
"""

from __future__ import annotations

from typing import Any, ClassVar

from unmask.models.checkpoint.config import Config
from unmask.models.checkpoint.tokenizer import TextCodec
from unmask.models.families.base import families
from unmask.models.families.qwen import QwenFamily


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
