"""Requests in, answers out: what the server would answer to each line of a batch, without a server.

Lines and results are plain data that can be pickled, so replicas on a cluster may answer some of the lines. A result
carries the id of its line. Knows nothing of files.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any

from unmask.engine.generator import Generator
from unmask.engine.scheduler import Request, Scheduler
from unmask.policies import Policy
from unmask.remote.cluster import ClusterConfig
from unmask.remote.replicas import Pool
from unmask.serve.answers import Answer
from unmask.serve.errors import ApiError, answer_to, wrong
from unmask.serve.schema import ChatRequest, CompletionRequest, request_of
from unmask.serve.translate import check_defaults, translate
from unmask.settings import Settings

log = logging.getLogger(__name__)

Line = dict[str, Any]  # custom_id, method, url, body
Result = dict[str, Any]  # id, custom_id, response, error
URLS = {"/v1/completions": CompletionRequest, "/v1/chat/completions": ChatRequest}
MOST_TEXTS = 2048  # of one line: they wait in memory


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
    texts: dict[Request, tuple[Line, Answer]] = {}

    def refill() -> Iterator[Result]:
        """Read lines until as many texts wait as are decoded, so that a pass may free every row."""
        while len(scheduler.line) + len(scheduler.running) < 2 * rows and (line := next(unread, None)) is not None:
            try:
                body = request_of(line["body"], URLS[line["url"]])
                if body.stream:
                    raise wrong("a batch is not streamed; leave stream out", param="stream")
                answer = translate(body, llm, policy=policy, settings=settings, most=MOST_TEXTS, name=name)
            except Exception as error:
                if not isinstance(error, ApiError):
                    log.error("reading the request %r failed", line["custom_id"], exc_info=error)
                yield _result(line, answer_to(error))
                continue
            texts.update(dict.fromkeys(answer.requests, (line, answer)))
            scheduler.line.extend(answer.requests)

    yield from refill()
    for request, event in llm.decode(scheduler):
        if request in texts:  # else another text of its line has failed, and it is decoded to its end for nothing
            line, answer = texts[request]
            answer.hear(request, event)
            error = None if event.step is None else event.step.error
            if error is not None or answer.done:
                for each in answer.requests:
                    del texts[each]
                yield _result(line, answer.whole() if error is None else answer_to(error))
        yield from refill()


def complete_on(
    cluster: ClusterConfig,
    open_model: Callable[[], tuple[Generator, Policy]],
    lines: Iterator[Line],
    *,
    count: int,
    rows: int,
    **options: Any,
) -> Iterator[Result]:
    """As `complete`, for `count` lines, on every replica of the cluster; `open_model` loads the model there."""

    def answer(opened: tuple[Generator, Policy], part: list[Line]) -> list[Result]:
        llm, policy = opened
        return list(complete(llm, part, policy=policy, rows=rows, **options))

    with closing(Pool(open_model, cluster)) as replicas:
        for results in replicas.map(answer, ((part,) for part in replicas.parts(lines, count, rows))):
            yield from results


def _result(line: Line, answer: ApiError | dict[str, Any]) -> Result:
    status, body = (answer.status_code, answer.body) if isinstance(answer, ApiError) else (200, answer)
    number = uuid.uuid4().hex
    response = {"status_code": status, "request_id": number, "body": body}
    return {"id": f"batch_req_{number}", "custom_id": line["custom_id"], "response": response, "error": None}
