"""From OpenAI's fields to ours: what a request asks for, with the defaults of the server or the batch filled in.

A field that we do not support is refused if its value would change the answer. An unknown field is reported back as
ignored; inside `decoding` it is refused.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from unmask import policies
from unmask.engine.detail import Detail
from unmask.engine.generator import Generator
from unmask.engine.plan import Plan, plan, preset_name
from unmask.engine.scheduler import Request
from unmask.errors import UnknownName, UnmaskError, check_known
from unmask.policies import Policy
from unmask.serve.answers import Answer
from unmask.serve.errors import ApiError, blaming, wrong
from unmask.serve.logprobs import Logprobs
from unmask.serve.prompts import has_mask, prompts_of
from unmask.serve.schema import MOST_STOPS, Body, ChatRequest, CompletionRequest
from unmask.settings import Settings
from unmask.trace.record import Trace

SETTINGS = tuple(item.name for item in fields(Settings))
OWN = ("policy", "step_map", "events")
MOST_CANDIDATES, WIDEST_OVERLAP = 20, 256  # of an open position; positions of a block: both are sent in every pass
MOST_ROUNDS = dict.fromkeys(("iterations", "history"), 64)  # of a policy's own computation within a pass
NO_END: dict[str, Any] = {"max_tokens": None, "stop": (), "stop_token_ids": ()}  # what a text with holes has
MOST_TOLD = 2**18  # candidates in one answer, which is made at once
LARGEST_SEED = 2**31  # of those that are drawn: every client can read it, and n more fit behind it
# Fields that would change the answer, and the values with which they would not.
REFUSED: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("tools", "functions", "bad_words", "allowed_token_ids", "stop_token_ids"), ([],)),
    **dict.fromkeys(("tool_choice", "function_call"), ("none", "auto")),
    **dict.fromkeys(("echo", "ignore_eos", "use_beam_search"), (False,)),
    **dict.fromkeys(("presence_penalty", "frequency_penalty", "min_p", "min_tokens"), (0,)),
    **dict.fromkeys(("repetition_penalty", "length_penalty", "best_of"), (1,)),
    **dict.fromkeys(("top_logprobs", "audio", "web_search_options"), ()),
    **dict.fromkeys(("grammar", "ebnf", "regex", "json_schema", "structured_outputs"), ()),
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar"), ()),
    "top_k": (0, -1),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),
}


def check_model(name: str | None, served: str) -> None:
    """Raise if a request names another model than the one that is there."""
    if name not in (None, served):
        message = f"the model {name!r} does not exist here; there is only {served!r}"
        raise ApiError(404, message, param="model", code="model_not_found")


def check_defaults(llm: Generator, policy: Policy, settings: Settings) -> Plan:
    """The plan of requests that keep the defaults; raises if they could not be decoded, whatever their prompt."""
    job = plan(llm.model, policy, settings)
    if job.max_tokens >= llm.spec.max_length:
        room = f"leaves no room for a prompt in the {llm.spec.max_length} positions of {llm.spec.name}"
        raise UnmaskError(f"max_tokens={job.max_tokens} {room}; give a smaller number")
    return job


def translate(
    body: Body,
    llm: Generator,
    *,
    policy: Policy,
    settings: Settings,
    most: int,
    name: str | None = None,
    draw_seed: bool = False,
) -> Answer:
    """What the request asks for, yet to be decoded.

    `policy` and `settings` are the defaults, `most` is the number of texts allowed, `name` what clients call the model
    (None: as loaded). With `draw_seed`, a request that gives no seed has a random one, unless its temperature is 0.
    """
    name, extra, decoding = name or llm.spec.name, body.model_extra or {}, body.decoding or {}
    check_model(body.model, name)
    _check_fields(body, extra)
    prompts = prompts_of(body, llm)
    if (texts := len(prompts) * (body.n or 1)) > most:
        raise wrong(f"{texts} texts are asked for; one request may ask for {most}")
    policy, given = _policy(decoding, llm, policy), _given(body, decoding)
    for setting, (place, value) in given.items():
        with blaming(place):
            settings = settings.with_(**{setting: value})
    if draw_seed and "seed" not in given and settings.temperature > 0:
        settings = settings.with_(seed=secrets.randbelow(LARGEST_SEED))
    with blaming("decoding"):
        job = plan(llm.model, policy, settings)
    top = _logprobs(body)
    requests = _requests(body, llm, prompts, job, given, _detail(body, job, top))
    _check_work(decoding, job, most_blocks=max(len(request.canvas.blocks) for request in requests))
    if (told := sum(len(request.canvas.holes) for request in requests) * (top or 0)) > MOST_TOLD:
        raise wrong(f"{told} candidates are asked for; one request may ask for {MOST_TOLD}", param="logprobs")
    for request in requests:
        request.trace = None  # its lines are sent, not kept
    events = decoding.get("events") not in (None, False)
    return Answer(
        body=body,
        model=name,
        requests=requests,
        policy=policy,
        seed=settings.seed,
        ignored=sorted({*(name for name in extra if name not in REFUSED), *_ignored_inside(body)}),
        logprobs=[] if top is None else [Logprobs(one, llm.codec, top=top, chat=body.chat) for one in requests],
        header=Trace.join([llm.new_trace(request) for request in requests]).header if events else None,
    )


def _check_fields(body: Body, extra: dict[str, Any]) -> None:
    for name, value in extra.items():
        if name in REFUSED and value is not None and value not in REFUSED[name]:
            way = f" here; give it as decoding.{name}" if name in SETTINGS else ""
            raise wrong(f"{name} is not supported{way}", param=name)
    if body.stream_options is not None and not body.stream:
        raise wrong("stream_options is for requests with stream: true", param="stream_options")
    step_map = (body.decoding or {}).get("step_map", False)
    if not isinstance(step_map, bool):
        raise wrong(f"step_map must be true or false, got {step_map!r}", param="decoding.step_map")


def _logprobs(body: Body) -> int | None:
    """How many candidates to tell of each token, beside the log-probability of the token itself; None: not asked."""
    if isinstance(body, ChatRequest):
        if body.top_logprobs is not None and not body.logprobs:
            raise wrong("top_logprobs is for requests with logprobs: true", param="top_logprobs")
        return (body.top_logprobs or 0) if body.logprobs else None
    return None if body.logprobs is False else body.logprobs


def _detail(body: Body, job: Plan, top: int | None) -> Detail | None:
    """What passes should tell beyond their commits: what events are asked for, and candidates of log-probabilities."""
    given, param, detail = (body.decoding or {}).get("events"), "decoding.events", None
    if given is not None and not isinstance(given, bool | dict):
        raise wrong(f"events must be true, false or an object, got {given!r:.80}", param=param)
    if given not in (None, False) and not body.stream:
        raise wrong("events is for requests with stream: true", param=param)
    if isinstance(given, dict):
        with blaming(param):
            check_known("field of events", given, [item.name for item in fields(Detail)])
            detail = Detail(**given)
            if detail.candidates > MOST_CANDIDATES:
                raise UnmaskError(f"candidates must be at most {MOST_CANDIDATES}, got {detail.candidates}")
            if detail.overlap and job.block_size > WIDEST_OVERLAP:
                widest = f"blocks of at most {WIDEST_OVERLAP} positions, got {job.block_size}"
                raise UnmaskError(f"overlap is for {widest}; give a smaller block_size")
    if top is not None:
        detail = replace(detail or Detail(candidates=0), candidates=max(top, detail.candidates if detail else 0))
    return detail


def _ignored_inside(body: Body) -> Iterator[str]:
    if body.stream_options is not None:
        yield from (f"stream_options.{name}" for name in body.stream_options.model_extra or {})
    for number, message in enumerate(body.messages if isinstance(body, ChatRequest) else ()):
        yield from (f"messages[{number}].{name}" for name in message.model_extra or {})


def _policy(decoding: dict[str, Any], llm: Generator, default: Policy) -> Policy:
    """The named policy with the preset of the model's family, else the server's; with the parameters given here."""
    base, name, family = default, decoding.get("policy"), preset_name(llm.spec)
    if "policy" in decoding:
        if not isinstance(name, str):
            raise wrong(f"policy must be a name, got {name!r}", param="decoding.policy")
        with blaming("decoding.policy"):
            base = policies.resolve(name, family)
    own = sorted(policies.describe(base).keys() - {"name"})
    for key in (key for key in decoding if key not in (*OWN, *SETTINGS, *own)):
        message = str(UnknownName("field of decoding", key, [*OWN, *SETTINGS, *own]))
        if owner := policies.owner_of(key):
            has = f"the policy {policies.name_of(base)} has no parameter {key}; it has: {', '.join(own) or 'none'}"
            message = f"{has}; {key} is a parameter of policies such as {owner}, to be named under decoding.policy"
        raise wrong(message, param=f"decoding.{key}")
    given = {key: value for key, value in decoding.items() if key in own}
    with blaming(f"decoding.{next(iter(given))}" if len(given) == 1 else "decoding"):
        return policies.resolve(base, family, parameters=given)


def _check_work(decoding: dict[str, Any], job: Plan, *, most_blocks: int) -> None:
    """Refuse a policy's numbers that make a text more work than the longest text that the model has room for.

    A schedule may leave passes idle, so `passes` times the number of blocks is at most the model's positions.
    """
    limits = MOST_ROUNDS | {"passes": max(1, job.spec.max_length // most_blocks)}
    largest = max(job.spec.vocab_size, job.spec.max_length)  # beyond every size of the model, numbers only overflow
    for key, value in policies.describe(job.policy).items():
        most, given = limits.get(key, largest), key in decoding
        if isinstance(value, int) and value > most and (given or key == "passes"):
            raise wrong(f"{key} must be at most {most}, got {value}", param=f"decoding.{key}" if given else "decoding")


def _given(body: Body, decoding: dict[str, Any]) -> dict[str, tuple[str, Any]]:
    """The settings that the request gives, in OpenAI's fields or in `decoding`, each with the field's name."""
    given: dict[str, tuple[str, Any]] = {}
    own = [(name, f"decoding.{name}", decoding.get(name)) for name in SETTINGS]
    theirs = [(name, name, getattr(body, name)) for name in ("max_tokens", "temperature", "top_p", "seed", "stop")]
    theirs.append(("max_tokens", "max_completion_tokens", body.max_completion_tokens))
    for name, place, value in [*own, *theirs]:
        if value is None:
            continue
        value = [value] if name == "stop" and isinstance(value, str) else value
        if name == "stop" and isinstance(value, list) and len(value) > MOST_STOPS:
            raise wrong(f"stop must hold at most {MOST_STOPS} strings, got {len(value)}", param=place)
        before, first = given.setdefault(name, (place, value))
        if first != value:
            raise wrong(f"{before} and {place} are given with different values", param=place)
    return given


def _requests(
    body: Body,
    llm: Generator,
    prompts: list[Any],
    job: Plan,
    given: dict[str, tuple[str, Any]],
    detail: Detail | None,
) -> list[Request]:
    """The engine's requests; a prompt with masks is filled, any other is continued."""
    suffix, first = body.suffix if isinstance(body, CompletionRequest) else None, job.settings.seed
    infills = [has_mask(prompt, llm) for prompt in prompts]
    for place, value in [("suffix", suffix), *(given[name] for name in NO_END if name in given)]:
        if value and any(infills):
            raise wrong(f"the masks in the prompt say what to fill: {place} does not apply", param=place)
    with blaming("seed"):
        varied = [job.settings.with_(seed=seed) for seed in range(first, first + (body.n or 1))]
    endless = [settings.with_(**NO_END) for settings in varied]
    more: dict[str, Any] = {"suffix": suffix, "policy": job.policy, "trace": detail or False}
    try:
        return [
            llm.request(prompt, infill=infill, settings=settings, **more)
            for prompt, infill in zip(prompts, infills, strict=True)
            for settings in (endless if infill else varied)
        ]
    except UnmaskError as error:
        # Where other fields may be the reason, none is named.
        several = suffix is not None or (job.max_tokens >= llm.spec.max_length and not any(infills))
        param = None if several else "messages" if isinstance(body, ChatRequest) else "prompt"
        raise wrong(error, param=param) from error
