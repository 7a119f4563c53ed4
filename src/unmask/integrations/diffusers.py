"""Our policies in the `LLaDA2Pipeline` of diffusers: a scheduler, and the attention mask that LLaDA2 and SDAR need.

The pipeline owns the loop. It has no cache, so this is a reference for tokens, not a way to be fast.
"""

from __future__ import annotations

from typing import Any

import torch
from diffusers.configuration_utils import register_to_config
from diffusers.schedulers.scheduling_block_refinement import BlockRefinementScheduler, BlockRefinementSchedulerOutput
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask import policies, rules
from unmask.errors import UnmaskError
from unmask.integrations.host import Block, advance, allowed
from unmask.settings import Settings


class UnmaskScheduler(BlockRefinementScheduler):
    """Commits what a policy decides: any installed one that needs only logits, by name and parameters."""

    @register_to_config
    def __init__(
        self,
        policy: str = "mean_field",
        parameters: dict[str, Any] | None = None,
        block_length: int = 32,
        num_inference_steps: int = 32,
    ) -> None:
        # Not the initialiser of the base: it would add the fields of its own rule to the config.
        self.set_timesteps(num_inference_steps, block_length=block_length)
        chosen = policies.get(policy, **parameters or {})
        self._policy = allowed(chosen, "diffusers' pipeline", gives=frozenset({"uniform"}))
        self._state: Any = None  # of the policy, since the first pass over the current block

    def set_timesteps(
        self, num_inference_steps: int, device: str | torch.device | None = None, block_length: int | None = None
    ) -> None:
        length = self.config["block_length"] if block_length is None else block_length
        if num_inference_steps < length:
            cause = "the pipeline takes the smaller of num_inference_steps and gen_length // minimal_topk"
            what = f"a block of {length} may take {length} passes, and it gets {num_inference_steps}"
            raise UnmaskError(f"{what}: {cause}; raise them, or lower block_length")
        super().set_timesteps(num_inference_steps, device=device, block_length=block_length)

    @torch.no_grad()
    def step(
        self,
        model_output: Float[Tensor, "b k v"],
        timestep: int | Tensor,
        sample: Int[Tensor, "b k"],
        *,
        mask_token_id: int | None = None,
        temperature: float = 0.0,
        top_p: float | None = None,
        top_k: int | None = None,
        sampling_method: str = "auto",
        threshold: float | None = None,
        editing_threshold: float | None = None,
        minimal_topk: int | None = None,
        prompt_mask: Bool[Tensor, " k"] | None = None,
        generator: torch.Generator | None = None,
        return_dict: bool = True,
    ) -> Any:
        """One pass over the current block, which begins at timestep 0.

        `threshold` and `editing_threshold` belong to the rule of diffusers, and have no effect: the pipeline always
        passes its defaults. The policy's threshold is one of the scheduler's `parameters`, and no policy edits tokens.
        """
        if mask_token_id is None:
            raise UnmaskError("mask_token_id is missing: models without a mask token (DiffusionGemma) are not decoded")
        if minimal_topk not in (None, 1):
            raise UnmaskError(f"minimal_topk must be 1, got {minimal_topk}: the policy decides how many to commit")
        step = int(timestep)
        given = torch.zeros_like(sample[0], dtype=torch.bool) if prompt_mask is None else prompt_mask
        block = Block(
            logits=model_output,
            tokens=sample,
            masked=(sample == mask_token_id) & ~given,
            mask_id=mask_token_id,
            given=given.expand(sample.shape),
            step=torch.full_like(sample[:, 0], step),
            limit=self.num_inference_steps,
        )
        if not bool(block.masked.any()):  # the pass after a block's last commit must not use up the caller's seed
            temperature, generator = 0.0, None
        drawn = temperature if sampling_method != "greedy" else 0.0
        settings = Settings(temperature=drawn, top_p=1.0 if top_p is None else top_p, top_k=top_k or 0)
        state = self._state if step > 0 else None
        done = advance(self._policy, block, state, settings=settings, generator=generator, sees_drawn=True)
        self._state = done.state
        answer = BlockRefinementSchedulerOutput(
            prev_sample=done.tokens,  # ty: ignore[invalid-argument-type]
            transfer_index=done.commit,  # ty: ignore[invalid-argument-type]
            editing_transfer_index=done.remask,  # ty: ignore[invalid-argument-type]
            sampled_tokens=done.proposed,  # ty: ignore[invalid-argument-type]
            sampled_probs=rules.probability_of(done.proposed, model_output),
            pred_logits=model_output,
        )
        return answer if return_dict else answer.to_tuple()


class BlockCausal(torch.nn.Module):
    """A model of transformers whose blocks see themselves and the blocks before them.

    The pipeline passes a mask of padding (b, n), which LLaDA2's own code refuses and other models take for causal. The
    mask made here is added to scores, as models of transformers want it; LLaDA2's code does so with sdpa attention.
    """

    def __init__(self, model: torch.nn.Module, block_length: int) -> None:
        super().__init__()
        self.model, self.block_length = model, block_length

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.model.parameters()).dtype

    def forward(
        self, input_ids: Int[Tensor, "b n"], attention_mask: Int[Tensor, "b n"], position_ids: Int[Tensor, "b n"]
    ) -> Any:
        block = torch.arange(input_ids.shape[1], device=input_ids.device) // self.block_length
        seen = (block[:, None] >= block) & attention_mask[:, None, None, :].bool()
        mask = torch.zeros(seen.shape, dtype=self.dtype, device=seen.device)
        mask = mask.masked_fill(~seen, torch.finfo(self.dtype).min)
        return self.model(input_ids, attention_mask=mask, position_ids=position_ids, use_cache=False)
