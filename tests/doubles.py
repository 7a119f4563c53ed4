"""Test equipment: models whose every answer is written down, one that watches how it is called, and the bare loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch

from unmask import policies
from unmask.bench.measure import ModelCall
from unmask.cache.storage import StoragePool
from unmask.engine.canvas import Canvas
from unmask.engine.decode import decode
from unmask.engine.plan import plan
from unmask.engine.runner import Runner
from unmask.engine.scheduler import Request, Scheduler
from unmask.engine.text import Ending
from unmask.models.base import Capabilities, MaskedLM, ModelSpec, Prediction
from unmask.models.checkpoint.tokenizer import TextCodec
from unmask.settings import Settings
from unmask.types import StepEvent

SPEC = ModelSpec(
    name="scripted",
    family="scripted",
    convention="llada",
    vocab_size=8,
    n_layers=1,
    max_length=64,
    mask_id=7,
    eos_id=6,
    end_ids=frozenset({5, 6}),
)


class Scripted:
    """Logits by position from a table (n, v), whatever the tokens."""

    device = torch.device("cpu")
    dtype = torch.float32
    capabilities = Capabilities(attention=True, shadow=True)

    def __init__(self, table: torch.Tensor, **changes) -> None:
        self.table = table
        self.spec = replace(SPEC, vocab_size=table.shape[1], **changes)

    def predict(self, tokens, *, plan=None, at=None, shadow=None, **options):
        whole = self.table[: tokens.shape[1]].repeat(len(tokens), 1, 1)
        pick = lambda rows: whole.gather(1, rows[..., None].expand(-1, -1, whole.shape[-1]))  # noqa: E731
        at = plan.positions if at is None and plan is not None and not plan.self_contained else at
        return Prediction(
            logits=whole if at is None else pick(at),
            attention=torch.eye(tokens.shape[1]).repeat(len(tokens), 1, 1),
            shadow_logits=None if shadow is None else pick(shadow),
        )


def call_of(*, rows: int, positions: int, keys: int, predicted: int) -> ModelCall:
    """A call of the model with rows that are all the same."""
    return ModelCall(positions=(positions,) * rows, keys=(keys,) * rows, predicted=predicted)


class Watched:
    """A model that notes, for every call, its rows and the most positions that are computed of one."""

    capabilities = Capabilities(attention=True, shadow=True, states=True)

    def __init__(self, model: MaskedLM) -> None:
        self.model, self.spec = model, model.spec
        self.device, self.dtype = model.device, model.dtype
        self.computed: list[tuple[int, int]] = []  # rows, positions

    def predict(self, tokens, *, plan, **options):
        self.computed.append((len(tokens), max(plan.sizes)))
        return self.model.predict(tokens, plan=plan, **options)


class _NoText(TextCodec):
    def __init__(self) -> None:
        pass

    def decode(self, ids, *, special=False) -> str:
        return ""

    def token_text(self, token_id) -> str:
        return ""


def continuing(
    prompt: list[int], max_tokens: int, *, mask_id: int, block_size: int, suffix: Iterable[int] = (), **more: Any
) -> Canvas:
    """A canvas of the prompt, `max_tokens` masks, and the suffix."""
    tokens = [*prompt, *[mask_id] * max_tokens, *suffix]
    return Canvas(tokens=tokens, mask_id=mask_id, block_size=block_size, **more)


def requests_of(
    model: MaskedLM,
    canvases: Iterable[Canvas],
    policy: Any,
    settings: Settings | None = None,
    *,
    ends: Iterable[int] = (),
) -> list[Request]:
    """Requests for canvases; a text ends with one of the tokens `ends`."""
    made = plan(model, policies.get(policy) if isinstance(policy, str) else policy, settings)
    ending = Ending(token_ids=frozenset(ends), strings=(), codec=_NoText())
    return [Request(canvas=canvas, plan=made, ending=ending) for canvas in canvases]


def events_of(
    requests: Iterable[Request],
    runner: Runner,
    *,
    rows: int | None = None,
    late: Callable[[int], list[Request]] = lambda n: [],
) -> Iterator[StepEvent]:
    """What the loop tells; `late` is asked after every event, whose number it is given, for requests to add.

    The error of a row is raised.
    """
    scheduler = Scheduler(requests)
    scheduler.rows = rows or max(1, len(scheduler.line))
    for number, event in enumerate(decode(scheduler, runner)):
        if event.error is not None:
            raise event.error
        yield event
        scheduler.line.extend(late(number))


def fill(
    model: MaskedLM,
    canvases: list[Canvas],
    policy: Any,
    settings: Settings | None = None,
    *,
    early: bool = False,
    pool: StoragePool | None = None,
    ends: Iterable[int] = (),
) -> list[StepEvent]:
    """Fill the canvases in place; the events of all passes."""
    pool = pool or StoragePool()
    runner = Runner(model, pool)
    if early:
        from early import Early  # needs the folders that make things fast

        runner = Early(model, pool)
    return list(events_of(requests_of(model, canvases, policy, settings, ends=ends), runner))


def tiny_config(family: str, **changes) -> dict:
    """A config in the public format of the family, small enough to run in milliseconds."""
    if family == "llada":
        config = {
            "model_type": "llada",
            "d_model": 32,
            "n_heads": 4,
            "n_kv_heads": 4,
            "n_layers": 3,
            "mlp_hidden_size": 48,
            "vocab_size": 61,
            "embedding_size": 64,
            "max_sequence_length": 256,
            "rope_theta": 10000.0,
            "rms_norm_eps": 1e-5,
            "weight_tying": False,
            "include_bias": False,
            "mask_token_id": 60,
            "eos_token_id": 59,
        }
    else:
        config = {
            "model_type": "Dream",
            "hidden_size": 32,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "num_hidden_layers": 3,
            "intermediate_size": 48,
            "vocab_size": 64,
            "max_position_embeddings": 256,
            "rope_theta": 10000.0,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": False,
            "mask_token_id": 60,
            "pad_token_id": 59,
            "eos_token_id": 59,
        }
    return config | changes
