"""From OpenAI's fields to ours: what a request asks for, with the server's defaults filled in.

Nothing that would change the answer is passed over: a field that we do not have is refused, one that we do not know is
reported back as ignored, and inside `decoding` everything must be known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from unmask import policies
from unmask.engine.generator import Generator
from unmask.engine.plan import plan, preset_name
from unmask.engine.scheduler import Request
from unmask.errors import UnknownName, UnmaskError
from unmask.policies import Policy
from unmask.serve.errors import wrong
from unmask.serve.schema import MOST_STOPS, ChatRequest, CompletionRequest, Message
from unmask.settings import Settings

SETTINGS = tuple(item.name for item in fields(Settings))
OWN = ("policy", "step_map")
# Parameters of policies that make every pass longer, and the most that a request may ask for.
MOST_WORK = dict.fromkeys(("iterations", "history"), 64)
# What the engine says of a mask in a prompt, and what there is here instead.
INFILL, SUFFIX = "use infill", "give /v1/completions what follows them as suffix"
# Fields that would change the answer, and the values with which they would not.
REFUSED: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "logprobs": (False,),
    "top_logprobs": (),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "best_of": (1,),
    "echo": (False,),
    "audio": (),
    "modalities": (["text"],),
    "web_search_options": (),
    "top_k": (0, -1),
    "min_p": (0,),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "length_penalty": (1,),
    "use_beam_search": (False,),
    **dict.fromkeys(("bad_words", "allowed_token_ids", "stop_token_ids"), ([],)),
    **dict.fromkeys(("grammar", "ebnf", "regex", "json_schema", "structured_outputs"), ()),
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar"), ()),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request in our words."""

    prompts: list[Any]  # each a text, token ids, or messages
    source: str | None  # the field to name if they cannot be served; None: it may be another as well
    suffix: str | list[int] | None
    choices: int  # of each prompt
    policy: Policy
    settings: Settings
    stream: bool
    include_usage: bool
    step_map: bool
    ignored: list[str]

    def requests(self, llm: Generator) -> list[Request]:
        """One for each choice, in order: prompts, and for each its choices, whose seeds count up."""
        seeds = range(self.settings.seed, self.settings.seed + self.choices)
        varied = [_changed(self.settings, "seed", seed, "seed") for seed in seeds]
        given: dict[str, Any] = {"suffix": self.suffix, "policy": self.policy}
        try:
            return [llm.request(prompt, settings=settings, **given) for prompt in self.prompts for settings in varied]
        except UnmaskError as error:
            raise wrong(str(error).replace(INFILL, SUFFIX), param=self.source) from error


def asked_by(
    body: CompletionRequest | ChatRequest, llm: Generator, *, policy: Policy, settings: Settings, most: int
) -> Asked:
    """What the request asks for; `policy` and `settings` are the server's, `most` the texts it takes at once."""
    extra = body.model_extra or {}
    for name, value in extra.items():
        if name in REFUSED and value is not None and not _neutral(value, REFUSED[name]):
            way = f" here; give it as decoding.{name}" if name in SETTINGS else ""
            raise wrong(f"{name} is not supported{way}", param=name)
    if body.stream_options is not None and not body.stream:
        raise wrong("stream_options is for requests with stream: true", param="stream_options")
    prompts, choices = _prompts(body), body.n or 1
    if len(prompts) * choices > most:
        raise wrong(f"{len(prompts) * choices} texts are asked for, and this server takes {most} at once")
    decoding = body.decoding or {}
    suffix = body.suffix if isinstance(body, CompletionRequest) else None
    policy, settings = _policy(decoding, llm, policy), _settings(body, decoding, settings)
    try:
        block_size = plan(llm.model, policy, settings).block_size
    except UnmaskError as error:
        raise wrong(error, param="decoding") from error
    _check_work(decoding, policy, min(block_size, llm.spec.max_length))
    return Asked(
        prompts=prompts,
        source=_source(body) if (settings.max_tokens or 0) < llm.spec.max_length else None,
        suffix=suffix,
        choices=choices,
        policy=policy,
        settings=settings,
        stream=bool(body.stream),
        include_usage=body.stream_options is not None and bool(body.stream_options.include_usage),
        step_map=_step_map(decoding),
        ignored=sorted({*(name for name in extra if name not in REFUSED), *_ignored_inside(body)}),
    )


def _neutral(value: Any, values: tuple[Any, ...]) -> bool:
    # False equals 0 in Python, but `logprobs: 0` asks for something and `logprobs: false` does not.
    return any(value == known and isinstance(value, bool) == isinstance(known, bool) for known in values)


def _prompts(body: CompletionRequest | ChatRequest) -> list[Any]:
    if isinstance(body, ChatRequest):
        return [[_message(message, number) for number, message in enumerate(body.messages)]]
    prompt = body.prompt
    if prompt == []:
        raise wrong("prompt is an empty list", param="prompt")
    several = isinstance(prompt, list) and not isinstance(prompt[0], int)
    if several and [] in prompt:
        raise wrong("prompt has an empty list of token ids", param="prompt")
    return list(prompt) if several else [prompt]


def _source(body: CompletionRequest | ChatRequest) -> str | None:
    if isinstance(body, ChatRequest):
        return "messages"
    return "prompt" if body.suffix is None else None


def _message(message: Message, number: int) -> dict[str, str]:
    for name in ("tool_calls", "function_call"):
        if (message.model_extra or {}).get(name):
            raise wrong("tools are not supported", param=f"messages[{number}].{name}")
    text = message.content
    if not isinstance(text, str):
        text = "\n".join(part.text for part in text)
    # OpenAI's newer word for the same thing, which no checkpoint of ours was trained with.
    return {"role": "system" if message.role == "developer" else message.role, "content": text}


def _ignored_inside(body: CompletionRequest | ChatRequest) -> Iterator[str]:
    if body.stream_options is not None:
        yield from (f"stream_options.{name}" for name in body.stream_options.model_extra or {})
    for number, message in enumerate(body.messages if isinstance(body, ChatRequest) else ()):
        yield from (f"messages[{number}].{name}" for name in message.model_extra or {})


def _policy(decoding: dict[str, Any], llm: Generator, default: Policy) -> Policy:
    """The named policy with the preset of the model's family, else the server's; its parameters given here changed."""
    base, name = default, decoding.get("policy")
    try:
        if "policy" in decoding:
            if not isinstance(name, str):
                raise UnmaskError(f"policy must be a name, got {name!r}")
            base = policies.resolve(name, preset_name(llm.spec))
    except UnmaskError as error:
        raise wrong(error, param="decoding.policy") from error
    described = policies.describe(base)
    known = [*OWN, *SETTINGS, *(key for key in described if key != "name")]
    for key in decoding:
        if key not in known:
            raise wrong(_unknown(key, known, described, named="policy" in decoding), param=f"decoding.{key}")
    given = {key: value for key, value in decoding.items() if key not in (*OWN, *SETTINGS)}
    if not given:
        return base
    # Beyond every size that the model has, numbers only overflow.
    largest = max(llm.spec.vocab_size, llm.spec.max_length)
    for key, value in given.items():
        most = MOST_WORK.get(key, largest)
        if isinstance(value, int) and value > most:
            raise wrong(f"{key} must be at most {most}, got {value}", param=f"decoding.{key}")
    try:
        return policies.resolve(base, preset_name(llm.spec), parameters=given)
    except ValueError as error:
        raise wrong(error, param=f"decoding.{next(iter(given))}" if len(given) == 1 else "decoding") from error


def _unknown(key: str, known: list[str], described: dict[str, Any], *, named: bool) -> str:
    owner, policy = policies.owner_of(key), described["name"]
    if owner is None:
        return str(UnknownName("field of decoding", key, known))
    if named:
        own = ", ".join(sorted(described.keys() - {"name"})) or "none"
        return f"the policy {policy} has no parameter {key}; it has: {own}"
    return f"{key} is a parameter of policies such as {owner}, not of {policy}; name the policy under decoding.policy"


def _check_work(decoding: dict[str, Any], policy: Policy, most: int) -> None:
    """Refuse more passes over a block than it has positions, if that comes of the request: some could be idle."""
    passes = getattr(policy, "passes", None)
    if isinstance(passes, int) and passes > most and decoding.keys() & {"passes", "block_size", "schedule"}:
        message = f"passes must be at most {most}, the positions of a block, got {passes}"
        raise wrong(message, param="decoding.passes" if "passes" in decoding else "decoding")


def _settings(body: CompletionRequest | ChatRequest, decoding: dict[str, Any], settings: Settings) -> Settings:
    """The server's settings with those changed that are given, beside OpenAI's fields or in `decoding`."""
    given: dict[str, tuple[str, Any]] = {}
    own = [(name, f"decoding.{name}", decoding.get(name)) for name in SETTINGS]
    theirs = [(name, name, getattr(body, name)) for name in ("max_tokens", "temperature", "top_p", "seed", "stop")]
    theirs.append(("max_tokens", "max_completion_tokens", body.max_completion_tokens))
    for name, place, value in [*own, *theirs]:
        if value is None:
            continue
        value = [value] if name == "stop" and isinstance(value, str) else value
        before = given.setdefault(name, (place, value))
        if name == "stop" and isinstance(value, list) and len(value) > MOST_STOPS:
            raise wrong(f"stop must hold at most {MOST_STOPS} strings, got {len(value)}", param=place)
        if before[1] != value:
            raise wrong(f"{before[0]} and {place} are given with different values", param=place)
    for name, (place, value) in given.items():
        settings = _changed(settings, name, value, place)
    return settings


def _changed(settings: Settings, name: str, value: Any, place: str) -> Settings:
    try:
        return settings.with_(**{name: value})
    except UnmaskError as error:
        raise wrong(error, param=place) from error


def _step_map(decoding: dict[str, Any]) -> bool:
    wanted = decoding.get("step_map", False)
    if not isinstance(wanted, bool):
        raise wrong(f"step_map must be true or false, got {wanted!r}", param="decoding.step_map")
    return wanted
