"""Requests in, answers out: what the server would answer to each line of a batch, without a server.

Lines and results are plain data that can be pickled, so another process may answer some of the lines. A result carries
the id of its line. Knows nothing of files.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from unmask.engine.generator import Generator
from unmask.engine.scheduler import Request, Scheduler
from unmask.policies import Policy
from unmask.serve.answers import Answer
from unmask.serve.errors import ApiError, answer_to, failed, wrong
from unmask.serve.schema import ChatRequest, CompletionRequest, request_of
from unmask.serve.translate import Asked, check_defaults, check_model, translate
from unmask.settings import Settings
from unmask.types import Output

log = logging.getLogger(__name__)

Line = dict[str, Any]  # custom_id, method, url, body
Result = dict[str, Any]  # id, custom_id, response, error
URLS = {"/v1/completions": CompletionRequest, "/v1/chat/completions": ChatRequest}
MOST_TEXTS = 2048  # of one line: they wait in memory


@dataclass(slots=True, eq=False, kw_only=True)
class _Open:
    """A line whose texts are being decoded."""

    line: Line
    answer: Answer
    outputs: dict[Request, Output] = field(default_factory=dict)


def complete(
    llm: Generator, lines: Iterable[Line], *, policy: Policy, settings: Settings, rows: int, name: str | None = None
) -> Iterator[Result]:
    """The result of each line, as soon as all of its texts are decoded; a line that is refused has its error there.

    `policy` and `settings` are the defaults of requests, `name` is what requests call the model. Up to `rows` texts are
    decoded together, and as many wait for a free row; no more lines are read. An error of the model or the device
    ends all lines and is raised.
    """
    check_defaults(llm, policy, settings)
    scheduler, unread = Scheduler(rows=rows), iter(lines)
    texts: dict[Request, _Open] = {}

    def refill() -> Iterator[Result]:
        """Read lines until as many texts wait as are decoded, so that a pass may free every row."""
        while len(scheduler.line) + len(scheduler.running) < 2 * rows and (line := next(unread, None)) is not None:
            try:
                asked = _asked(line, llm, policy, settings, name or llm.spec.name)
            except Exception as error:
                yield _refusal(line, error)
                continue
            opened = _Open(line=line, answer=Answer(asked=asked, model=name or llm.spec.name))
            texts.update(dict.fromkeys(asked.requests, opened))
            scheduler.line.extend(asked.requests)

    yield from refill()
    for request, event in llm.decode(scheduler):
        error = None if event.step is None else event.step.error
        if request in texts:
            texts[request].answer.hear(request, event)
        if request in texts and error is not None:
            opened = texts[request]
            for other in opened.answer.asked.requests:  # they are decoded to their ends, for nothing
                texts.pop(other, None)
            yield _result(opened.line, failed(error))
        elif request in texts and event.output is not None:
            opened = texts.pop(request)
            opened.outputs[request] = event.output
            asked = opened.answer.asked.requests
            if len(opened.outputs) == len(asked):
                yield _result(opened.line, opened.answer.whole([opened.outputs[text] for text in asked]))
        yield from refill()


def _asked(line: Line, llm: Generator, policy: Policy, settings: Settings, name: str) -> Asked:
    """The line's request, checked and translated as the server does it."""
    body = request_of(line["body"], URLS[line["url"]])
    check_model(body.model, name)
    if body.stream:
        raise wrong("a batch is not streamed; leave stream out", param="stream")
    return translate(body, llm, policy=policy, settings=settings, most=MOST_TEXTS)


def _refusal(line: Line, error: Exception) -> Result:
    if not isinstance(error, ApiError | RecursionError):
        log.error("reading the request %r failed", line["custom_id"], exc_info=error)
    return _result(line, answer_to(error))


def _result(line: Line, answer: ApiError | dict[str, Any]) -> Result:
    status, body = (answer.status_code, answer.body) if isinstance(answer, ApiError) else (200, answer)
    number = uuid.uuid4().hex
    response = {"status_code": status, "request_id": number, "body": body}
    return {"id": f"batch_req_{number}", "custom_id": line["custom_id"], "response": response, "error": None}
