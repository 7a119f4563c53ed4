"""From OpenAI's fields to ours: what a request asks for, with the defaults of the server or the batch filled in.

A field that we do not support is refused if its value would change the answer. An unknown field is reported back as
ignored; inside `decoding` it is refused.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from unmask import policies
from unmask.engine.generator import Generator
from unmask.engine.plan import Detail, Plan, plan, preset_name
from unmask.engine.prompts import as_batch, encode_prompt, token_list
from unmask.engine.scheduler import Request
from unmask.errors import TooLong, UnknownName, UnmaskError, WrongOption, counted
from unmask.policies import Policy
from unmask.serve import schema
from unmask.serve.answers import Answer, Logprobs
from unmask.serve.config import ServerConfig
from unmask.serve.errors import ApiError, blaming, wrong
from unmask.serve.schema import MOST_STOPS, Body, ChatRequest, Decoding, Events, GivenPart, MaskPart, Message
from unmask.settings import Settings
from unmask.trace.record import Trace

if TYPE_CHECKING:
    from unmask.serve.served import Served

SETTINGS = tuple(item.name for item in fields(Settings))
WIDEST_OVERLAP = 256  # positions of a block, whose overlap is sent in every pass
MOST_ROUNDS = {"iterations": 64, "history": 64}  # of a policy's own computation within a pass
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


def translate(body: Body, served: Served) -> Answer:
    """What the request asks for, yet to be decoded; raises if it is wrong, or more than the server allows."""
    llm, config = served.llm, served.config
    extra, decoding = body.model_extra or {}, body.decoding or Decoding()
    check_model(body.model, served.name)
    _check_fields(body, extra)
    prompts = _prompts(body, llm)
    if (texts := len(prompts) * (body.n or 1)) > config.max_queue:
        raise wrong(f"{texts} texts are asked for; one request may ask for {config.max_queue}")
    policy = _policy(decoding, llm, served.policy)
    settings, places = _settings(body, decoding, served.settings)
    if config.seed is None and "seed" not in places and settings.temperature > 0:
        settings = settings.with_(seed=secrets.randbelow(LARGEST_SEED))
    with blaming("decoding"):
        job = plan(llm.model, policy, settings)
    top = _logprobs(body)
    detail = _detail(decoding.events, job, top, streamed=bool(body.stream))
    requests = _requests(body, llm, prompts, job, places)
    _check_limits(requests, config)
    _check_work(decoding, job, most_blocks=max(len(request.canvas.blocks) for request in requests))
    if (told := sum(len(request.canvas.holes) for request in requests) * (top or 0)) > MOST_TOLD:
        raise wrong(f"{told} candidates are asked for; one request may ask for {MOST_TOLD}", param="logprobs")
    for request in requests:
        request.detail = detail
    return Answer(
        body=body,
        model=served.name,
        requests=requests,
        ignored=sorted({*(extra.keys() - REFUSED.keys()), *_ignored_inside(body)}),
        logprobs={} if top is None else {one: Logprobs(one, llm.codec, top=top, chat=body.chat) for one in requests},
        header=Trace.join([llm.new_trace(request) for request in requests]).header if decoding.events else None,
    )


def _check_fields(body: Body, extra: dict[str, Any]) -> None:
    for name, value in extra.items():
        if name in REFUSED and value is not None and value not in REFUSED[name]:
            way = f" here; give it as decoding.{name}" if name in SETTINGS else ""
            raise wrong(f"{name} is not supported{way}", param=name)
    if body.stream_options is not None and not body.stream:
        raise wrong("stream_options is for requests with stream: true", param="stream_options")


def _check_limits(requests: list[Request], config: ServerConfig) -> None:
    canvases = [request.canvas for request in requests]
    longest = max(canvas.length - len(canvas.holes) for canvas in canvases)
    if longest > (config.max_prompt_tokens or longest):
        message = f"the prompt has {longest} tokens; this server takes at most {config.max_prompt_tokens}"
        raise ApiError(400, message, code="context_length_exceeded")
    total = sum(canvas.length for canvas in canvases)
    if total > (config.max_total_tokens or total):
        asked = f"{counted(len(canvases), 'text')} of {total} tokens, prompts and max_tokens together"
        raise ApiError(400, f"{asked}; a request may have {config.max_total_tokens} here", code="too_many_tokens")


def _policy(decoding: Decoding, llm: Generator, default: Policy) -> Policy:
    """The named policy with the preset of the model's family, else the server's; with the parameters given here."""
    family = preset_name(llm.spec)
    with blaming("decoding.policy"):
        base = default if decoding.policy is None else policies.resolve(decoding.policy, family)
    given = {key: value for key, value in (decoding.model_extra or {}).items() if key not in SETTINGS}
    own = sorted(policies.describe(base).keys() - {"name"})
    for key in [key for key in given if key not in own]:
        message = str(UnknownName("field of decoding", key, [*Decoding.model_fields, *SETTINGS, *own]))
        if owner := policies.owner_of(key):
            has = f"the policy {policies.name_of(base)} has no parameter {key}; it has: {', '.join(own) or 'none'}"
            message = f"{has}; {key} is a parameter of policies such as {owner}, to be named under decoding.policy"
        raise wrong(message, param=f"decoding.{key}")
    with blaming("decoding"):
        return policies.resolve(base, family, parameters=given)


def _check_work(decoding: Decoding, job: Plan, *, most_blocks: int) -> None:
    """Refuse a policy's numbers that make a text more work than the longest text that the model has room for.

    A schedule may leave passes idle, so `passes` times the number of blocks is at most the model's positions.
    """
    limits = MOST_ROUNDS | {"passes": max(1, job.spec.max_length // most_blocks)}
    largest = max(job.spec.vocab_size, job.spec.max_length)  # beyond every size of the model, numbers only overflow
    for key, value in policies.describe(job.policy).items():
        most, given = limits.get(key, largest), key in (decoding.model_extra or {})
        if isinstance(value, int) and value > most and (given or key == "passes"):
            raise wrong(f"{key} must be at most {most}, got {value}", param=f"decoding.{key}" if given else "decoding")


def _ignored_inside(body: Body) -> Iterator[str]:
    if body.stream_options is not None:
        yield from (f"stream_options.{name}" for name in body.stream_options.model_extra or {})
    for number, message in enumerate(body.messages if isinstance(body, ChatRequest) else ()):
        yield from (f"messages[{number}].{name}" for name in message.model_extra or {})


def _settings(body: Body, decoding: Decoding, settings: Settings) -> tuple[Settings, dict[str, str]]:
    """The settings of the request, and which field gives each: one of OpenAI's, or one inside `decoding`."""
    own = [(name, f"decoding.{name}", (decoding.model_extra or {}).get(name)) for name in SETTINGS]
    theirs = [(name, name, getattr(body, name)) for name in ("max_tokens", "temperature", "top_p", "seed", "stop")]
    theirs.append(("max_tokens", "max_completion_tokens", body.max_completion_tokens))
    places: dict[str, str] = {}
    for name, place, value in [*own, *theirs]:
        if value is None:
            continue
        before = settings
        with blaming(place):
            settings = before.with_(**{name: value})
        if name in places and settings != before:
            raise wrong(f"{places[name]} and {place} are given with different values", param=place)
        places[name] = place
    if "stop" in places and len(settings.stop) > MOST_STOPS:
        message = f"stop must hold at most {MOST_STOPS} strings, got {len(settings.stop)}"
        raise wrong(message, param=places["stop"])
    return settings, places


def _logprobs(body: Body) -> int | None:
    """How many candidates to tell of each token, beside the log-probability of the token itself; None: not asked."""
    if isinstance(body, ChatRequest):
        if body.top_logprobs is not None and not body.logprobs:
            raise wrong("top_logprobs is for requests with logprobs: true", param="top_logprobs")
        return (body.top_logprobs or 0) if body.logprobs else None
    return None if body.logprobs is False else body.logprobs


def _detail(events: bool | Events | None, job: Plan, top: int | None, *, streamed: bool) -> Detail | None:
    """What passes should tell beyond their commits: what events are asked for, and candidates of log-probabilities."""
    if events and not streamed:
        raise wrong("events is for requests with stream: true", param="decoding.events")
    asked = events if isinstance(events, Events) else Events(candidates=0)
    if asked.overlap and job.block_size > WIDEST_OVERLAP:
        widest = f"blocks of at most {WIDEST_OVERLAP} positions, got {job.block_size}"
        raise wrong(f"overlap is for {widest}; give a smaller block_size", param="decoding.events")
    if asked is not events and top is None:
        return None
    return Detail(candidates=max(asked.candidates, top or 0), overlap=asked.overlap)


def _requests(body: Body, llm: Generator, prompts: list[Any], job: Plan, places: dict[str, str]) -> list[Request]:
    """The engine's requests; a prompt with masks is filled, any other is continued."""
    suffix, first = body.suffix if isinstance(body, schema.CompletionRequest) else None, job.settings.seed
    endless = job.settings.with_(**{name: value for name, value in NO_END.items() if name not in places})
    requests, infill = [], False
    try:
        for prompt in prompts:
            infill = _has_mask(prompt, llm)
            given: Any = {"suffix": suffix, "infill": infill, "policy": job.policy}
            for seed in range(first, first + (body.n or 1)):
                settings = (endless if infill else job.settings).with_(seed=seed)
                requests.append(llm.request(prompt, settings=settings, **given))
    except WrongOption as error:
        raise wrong(error, param=places.get(error.name, error.name)) from error
    except UnmaskError as error:
        # Where other fields may be the reason, none is named.
        several = suffix is not None or (job.max_tokens >= llm.spec.max_length and not infill)
        param = None if several else "messages" if isinstance(body, ChatRequest) else "prompt"
        raise wrong(error, param=param) from error
    return requests


def _prompts(body: Body, llm: Generator) -> list[Any]:
    """Each prompt is a text, token ids or messages."""
    if isinstance(body, ChatRequest):
        return [_messages(body.messages)]
    if isinstance(body.prompt, list) and body.prompt and isinstance(body.prompt[0], GivenPart | MaskPart):
        with blaming("prompt"):
            return [_joined(body.prompt, llm)]  # ty: ignore[invalid-argument-type]
    prompts, _ = as_batch(body.prompt)  # ty: ignore[invalid-argument-type]
    if not prompts or [] in prompts:
        raise wrong("prompt is an empty list, or has one", param="prompt")
    return prompts


def _joined(parts: list[GivenPart | MaskPart], llm: Generator) -> list[int]:
    """The token ids of a text with holes, behind what the family begins a text with."""
    if (masks := sum(part.mask for part in parts if isinstance(part, MaskPart))) > llm.spec.max_length:
        raise TooLong(f"{masks} masks are more than the {llm.spec.max_length} positions of {llm.spec.name}")
    if masks == 0:
        raise UnmaskError('the parts of prompt have no hole; give one as {"mask": N}, or the prompt as a text')
    ids: list[int] = []
    for number, part in enumerate(parts):
        text, missing = ("", part.mask) if isinstance(part, MaskPart) else (part.text, 0)
        ids += encode_prompt(llm.spec, llm.codec, text, special=False, begins=number == 0)
        ids += [llm.spec.mask_id] * missing
    return ids


def _has_mask(prompt: Any, llm: Generator) -> bool:
    """Whether a prompt is a text with holes; a conversation is none."""
    return (llm.codec.token_text(llm.spec.mask_id) if isinstance(prompt, str) else llm.spec.mask_id) in prompt


def _messages(given: list[Message]) -> list[dict[str, str]]:
    found = []
    for number, message in enumerate(given):
        for name in ("tool_calls", "function_call"):
            if (message.model_extra or {}).get(name):
                raise wrong("tools are not supported", param=f"messages[{number}].{name}")
        parts = [message.content] if isinstance(message.content, str) else [part.text for part in message.content]
        # `developer` is OpenAI's newer word for `system`; no checkpoint of ours was trained with it.
        role = "system" if message.role == "developer" else message.role
        found.append({"role": role, "content": "\n".join(parts)})
    return found


def tokenize(body: schema.TokenizeRequest, llm: Generator) -> dict[str, Any]:
    """The token ids of a prompt or a conversation, the text of each, and how many positions the model has."""
    if (body.prompt is None) == (body.messages is None):
        raise wrong("give either prompt or messages", param="prompt")
    if body.messages is not None:
        with blaming("messages"):
            ids = llm.codec.chat(_messages(body.messages))
    else:
        special = body.add_special_tokens is not False
        with blaming("prompt"):
            ids = encode_prompt(llm.spec, llm.codec, body.prompt or "", special=special, begins=special)
    found = {"tokens": ids, "token_texts": [llm.codec.token_text(token) for token in ids], "count": len(ids)}
    return found | {"max_model_len": llm.spec.max_length, "ignored": sorted(body.model_extra or {})}


def detokenize(body: schema.DetokenizeRequest, llm: Generator) -> dict[str, Any]:
    """The text of token ids."""
    with blaming("tokens"):
        text = llm.codec.decode(token_list(body.tokens, llm.spec.vocab_size), special=True)
    return {"prompt": text, "ignored": sorted(body.model_extra or {})}
