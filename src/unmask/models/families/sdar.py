"""SDAR and TraDo: Qwen3 under a block-causal mask, blocks counted from position 0.

A block sees itself and the blocks before it, so the keys and values of a finished block are computed once more and
then kept (cache='exact'). The logits at a position predict its own token. Sampling follows Dream's: the confidence of a
drawn token is its probability under the distribution that it was drawn from.
"""

from __future__ import annotations

from typing import Any, ClassVar

from unmask.models.checkpoint.config import Config
from unmask.models.checkpoint.tokenizer import TextCodec
from unmask.models.families.base import families
from unmask.models.families.qwen import QwenFamily

BLOCK_SIZE = 4  # of checkpoints that do not say


@families.register("sdar")
class SDAR(QwenFamily):
    family = "sdar"
    implemented: ClassVar = QwenFamily.implemented | {"attention_bias": (False,)}
    qk_norm = True

    def quirks(self, config: Config, codec: TextCodec, ends: list[int]) -> dict[str, Any]:
        padding = config.ids("pad_token_id")
        eos_id = next((end for end in ends if end in padding), ends[0])  # of the ids that end a text, the one that pads
        return {"eos_id": eos_id, "causal": True, "block_size": config.whole("block_size", BLOCK_SIZE)}
