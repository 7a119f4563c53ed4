"""Our policies as decoding algorithms of SGLang's diffusion language models: LLaDA2.x and SDAR.

SGLang imports this module itself, in each of its processes, and calls `register`: the entry point `unmask` of its group
`sglang.srt.plugins`. Then `--dllm-algorithm UnmaskMeanField` names the policy `mean_field`, and so for every installed
policy; the keys of `--dllm-algorithm-config` are its fields.

SGLang owns the loop, the batch and the cache. It ignores temperature and seeds there, and so do we.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from sglang.srt.dllm.algorithm import algo_name_to_cls  # ty: ignore[import-not-found]
from sglang.srt.dllm.algorithm.base import DllmAlgorithm  # ty: ignore[import-not-found]
from torch import Tensor

from unmask import policies
from unmask.integrations.host import Block, advance, allowed

logger = logging.getLogger(__name__)

_CONSTRAINTS = ("json_schema", "regex", "ebnf", "structural_tag", "logit_bias")
_PATIENCE = 4  # passes that a block may take for each of its positions, if the policy waits or opens positions again


@dataclass(frozen=True, slots=True, kw_only=True)
class RowState:
    """What is kept of a request while its block is decoded; SGLang carries it from pass to pass."""

    given: Bool[Tensor, " k"]  # positions of the block that were not generated
    step: int = 0  # passes spent on the block
    of_policy: Any = None


class UnmaskAlgorithm(DllmAlgorithm):
    """What the algorithms of all policies have in common; a subclass names its policy."""

    policy_name: ClassVar[str]
    supported_architectures = ("LLaDA2MoeModelLM", "SDARForCausalLM", "SDARMoeForCausalLM")

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        # SGLang has read the block size, but leaves it among the keys.
        fields = {key: value for key, value in config.algorithm_config.items() if key != "block_size"}
        self.policy = allowed(policies.get(self.policy_name, **fields), "SGLang")

    @classmethod
    def configure_server_args(cls, server_args: Any) -> None:
        """Refuse a wrong key, value or policy at launch: SGLang itself builds the algorithm after the model."""
        cls.from_server_args(server_args)

    @classmethod
    def validate_request(cls, req: Any) -> str | None:
        """What is answered with status 400, because it would be ignored without a word."""
        unheeded = [name for name in _CONSTRAINTS if getattr(req.sampling_params, name)]
        return f"{cls.__name__} cannot heed {', '.join(unheeded)}; leave it out" if unheeded else None

    def max_steps(self, block_size: int) -> int:
        """Forward passes over a block, at most; the last one only stores its keys and values."""
        return _PATIENCE * block_size + 1

    def init_step_state(self, forward_batch: Any) -> list[RowState]:
        given = forward_batch.dllm_prompt_mask  # None, unless a prompt holds the mask token literally
        if given is None:
            given = forward_batch.input_ids.view(forward_batch.batch_size, self.block_size) != self.mask_id
        return [RowState(given=row) for row in given]

    @torch.no_grad()
    def step(self, forward_batch: Any, full_logits: Float[Tensor, "rows v"], states: list[RowState]) -> list[bool]:
        """Write one pass into `input_ids`, and say of each row whether its block was full when the pass began.

        Only then has that forward pass stored the keys and values of the block's final tokens.
        """
        shape = (forward_batch.batch_size, self.block_size)
        tokens, device = forward_batch.input_ids.view(shape), full_logits.device
        given = torch.stack([row.given for row in states])
        block = Block(
            logits=full_logits.view(*shape, -1),
            tokens=tokens,
            masked=(tokens == self.mask_id) & ~given,
            mask_id=self.mask_id,
            given=given,
            start=forward_batch.positions.view(shape)[:, 0],
            step=torch.tensor([row.step for row in states], device=device),
            limit=_PATIENCE * self.block_size,
        )
        after = tokens.clone()
        # The policy decides separately about rows of which it remembers nothing yet.
        fresh = [row for row, state in enumerate(states) if state.of_policy is None]
        others = [row for row, state in enumerate(states) if state.of_policy is not None]
        for cohort in filter(None, (fresh, others)):
            index = torch.tensor(cohort, device=device)
            history = policies.joined_state([states[row].of_policy for row in cohort])
            done = advance(self.policy, block if len(cohort) == len(states) else block.rows(index), history)
            after[index] = done.tokens
            for place, row in enumerate(cohort):
                own = policies.state_of(done.state, slice(place, place + 1))
                states[row] = replace(states[row], step=states[row].step + 1, of_policy=own)
        tokens.copy_(after)  # never bound anew: CUDA graphs know the tensor
        return (~block.masked.any(-1)).tolist()


def register() -> None:
    """Add an algorithm for every installed policy to SGLang's table; calling it again adds what is new."""
    added = []
    for policy in policies.names():
        name = "Unmask" + "".join(word[:1].upper() + word[1:] for word in policy.split("_"))
        members = {"policy_name": policy, "__doc__": f"Decoding with the policy {policy}."}
        algo_name_to_cls.setdefault(name, type(name, (UnmaskAlgorithm,), members))
        added.append(name)
    logger.info("unmask: registered %s", ", ".join(added))
