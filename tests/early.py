"""The runner of CUDA devices, to be used on the CPU."""

from __future__ import annotations

from unmask.cache.storage import StoragePool
from unmask.engine.cuda.runner import CudaRunner
from unmask.engine.runner import Runner
from unmask.models.base import MaskedLM


class Early(CudaRunner):
    """The runner of a CUDA device on the CPU: passes begin early, and decisions are made without graphs."""

    def __init__(self, model: MaskedLM, pool: StoragePool | None = None) -> None:
        super().__init__(model, pool or StoragePool())

    def prepare(self, call, plan, at):
        tokens, cache = call.tokens(), call.caches[0]
        return lambda: self.model.predict(tokens, plan=plan, at=at, cache=cache, block_size=call.kind.block_size)

    def decide_group(self, group, done):
        return Runner.decide_group(self, group, done)

    def close(self, *, usable):
        pass
