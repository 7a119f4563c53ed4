"""SGLang's own decoding loops on a CPU: the package of its wheel, installed apart, with stubs for what needs a GPU.

`make setup` puts the wheel into `.venv/hosts`, without its dependencies. Real are its algorithms, configuration, loops
and plug-in loader. Not real are its model runner and scheduler: `Runner` predicts with a model of ours, and `serve`
does what the scheduler does with the results of a pass.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from unmask.models.base import MaskedLM

WHEEL = Path(sys.prefix) / "hosts"


class ModelConfig:
    @staticmethod
    def from_server_args(server_args: Any, **options: Any) -> Any:
        return server_args.model_config


STUBS = {
    "arg_groups.overrides": {"resolving_view": lambda server_args: server_args},
    "configs.model_config": {"ModelConfig": ModelConfig},
    "layers.logits_processor": {"LogitsProcessorOutput": object},
    "model_executor.forward_batch_info": {"ForwardBatch": object},
    "model_executor.model_runner": {"ModelRunner": object},
    "server_args": {"ServerArgs": object},
    "utils": {"is_npu": lambda: False},
}


@contextlib.contextmanager
def imported() -> Iterator[SimpleNamespace]:
    """SGLang's modules and our adapter; afterwards neither is imported any more."""
    if not (WHEEL / "sglang").is_dir():
        pytest.fail(f"SGLang's wheel is not in {WHEEL}: run `make setup`")
    root = ModuleType("sglang")
    root.__path__ = [str(WHEEL / "sglang")]  # without its initialiser, which imports the whole server
    sys.modules["sglang"] = root
    for name, content in STUBS.items():
        module = sys.modules[f"sglang.srt.{name}"] = ModuleType(f"sglang.srt.{name}")
        vars(module).update(content)
    try:
        yield SimpleNamespace(
            algorithm=importlib.import_module("sglang.srt.dllm.algorithm"),
            base=importlib.import_module("sglang.srt.dllm.algorithm.base"),
            config=importlib.import_module("sglang.srt.dllm.config"),
            plugins=importlib.import_module("sglang.srt.plugins"),
            ours=importlib.import_module("unmask.integrations.sglang"),
        )
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "sglang"]:
            del sys.modules[name]
        sys.modules.pop("unmask.integrations.sglang", None)


@dataclass
class Request:
    """A request as SGLang's scheduler keeps it: committed tokens, and the block under way."""

    prompt: list[int]
    max_tokens: int
    offset: int = 0  # of the block
    output: list[int] = field(default_factory=list)
    unfinished: list[int] | None = None  # the block, while a first-done-first-out round leaves it open
    state: Any = None
    forwards: int = 0  # passes over blocks that had open positions at their start

    def block(self, size: int, mask_id: int) -> list[int]:
        if self.unfinished is not None:
            return self.unfinished
        known = (self.prompt + self.output)[self.offset : self.offset + size]
        return known + [mask_id] * (size - len(known))

    def finish_block(self, tokens: list[int]) -> None:
        """`tokens` of the whole block, given ones included."""
        given = self.prompt[self.offset :][: len(tokens)]
        assert tokens[: len(given)] == given
        self.output += tokens[len(given) :]
        self.offset += len(tokens)
        self.unfinished = self.state = None

    @property
    def done(self) -> bool:
        return len(self.output) >= self.max_tokens


@dataclass
class Batch:
    """The fields of SGLang's ForwardBatch that an algorithm may read."""

    input_ids: torch.Tensor
    positions: torch.Tensor
    batch_size: int
    dllm_prompt_mask: torch.Tensor | None
    requests: list[Request]

    @classmethod
    def of(cls, requests: list[Request], size: int, mask_id: int) -> Batch:
        positions = torch.tensor([[*range(request.offset, request.offset + size)] for request in requests])
        lengths = torch.tensor([[len(request.prompt) + len(request.output)] for request in requests])
        literal = any(mask_id in request.prompt for request in requests)
        return cls(
            input_ids=torch.tensor([request.block(size, mask_id) for request in requests]).flatten(),
            positions=positions.flatten().int(),
            batch_size=len(requests),
            dllm_prompt_mask=positions < lengths if literal else None,
            requests=requests,
        )


class Runner:
    """Predicts blocks with a block-causal model of ours, each behind its own request's tokens."""

    def __init__(self, model: MaskedLM, size: int) -> None:
        self.model, self.size = model, size
        self.seen: list[list[list[int]]] = []  # the blocks of every forward pass

    def forward(self, batch: Batch, pp_proxy_tensors: None) -> SimpleNamespace:
        blocks = batch.input_ids.view(batch.batch_size, self.size).tolist()
        self.seen.append(blocks)
        logits = []
        for request, block in zip(batch.requests, blocks, strict=True):
            request.forwards += request.offset + self.size > len(request.prompt)
            before = (request.prompt + request.output)[: request.offset]
            whole = self.model.predict(torch.tensor([before + block]), block_size=self.size).logits
            logits.append(whole[0, -self.size :])
        return SimpleNamespace(logits_output=SimpleNamespace(full_logits=torch.cat(logits)), can_run_graph=False)


@torch.inference_mode()
def serve(
    algorithm: Any, model: MaskedLM, requests: list[Request], *, late: dict[int, Request] | None = None
) -> Runner:
    """Decode as the scheduler does; `late` has requests that arrive after so many rounds."""
    size, mask_id, rounds, late = algorithm.block_size, algorithm.mask_id, 0, late or {}
    runner = Runner(model, size)
    while live := [request for request in requests if not request.done]:
        # Blocks of prompts are stored first, in batches of their own.
        prefill = [request for request in live if request.offset + size <= len(request.prompt)]
        batch = Batch.of(prefill or live, size, mask_id)
        before, storage = batch.input_ids.view(-1, size).tolist(), batch.input_ids
        _, tokens, accepted, states, _ = algorithm.run(runner, batch, [request.state for request in batch.requests])
        assert batch.input_ids is storage
        for number, request in enumerate(batch.requests):
            if algorithm.fdfo and not accepted[number]:
                request.unfinished, request.state = tokens[number], states[number]
                continue
            after = tokens[number] if algorithm.fdfo else [] if prefill else tokens[number].tolist()
            request.finish_block(after if algorithm.fdfo else [*before[number][: size - len(after)], *after])
        rounds += 1
        assert rounds < 500, "a request is never done"
        requests += [late.pop(rounds)] if rounds in late else []
