"""A file of requests in OpenAI's batch form, answered as the server would answer them (extra: serve).

Requests are read line by line, and answers are appended as they come. A run that was killed is taken up by the next
one: a last line that was cut short is cut off, and a request whose answer is there is not decoded again. Of a million
requests only the ids are held in memory. Lines and results are plain data, so replicas on a cluster may answer some.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from unmask.engine.generator import Generator
from unmask.engine.scheduler import Request, Scheduler
from unmask.errors import UnmaskError, WorkFailed
from unmask.locks import lock
from unmask.policies import Policy
from unmask.remote.replicas import Pool
from unmask.serve.answers import Answer
from unmask.serve.config import ServerConfig
from unmask.serve.errors import ApiError, answer_to, failed, wrong
from unmask.serve.schema import ChatRequest, CompletionRequest, request_of
from unmask.serve.served import Served
from unmask.serve.strict_json import dumps, loads
from unmask.serve.translate import translate
from unmask.settings import Settings

log = logging.getLogger(__name__)

Line = dict[str, Any]  # custom_id, method, url, body
Result = dict[str, Any]  # id, custom_id, response, error
URLS = {"/v1/completions": CompletionRequest, "/v1/chat/completions": ChatRequest}
MOST_TEXTS = 2048  # of one line: they wait in memory
SYNC_S = 5.0  # between two writes to the disk itself; a kill of the process alone loses nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a batch stands."""

    total: int  # requests of the input
    before: int  # answered by earlier runs
    done: int = 0  # answered by this run, as are the rest
    failed: int = 0  # refused, or not decoded to their end
    tokens: int = 0
    passes: int = 0
    seconds: float = 0.0

    def after(self, result: Result, seconds: float) -> Progress:
        response = result["response"]
        if response["status_code"] != 200:
            return replace(self, done=self.done + 1, failed=self.failed + 1, seconds=seconds)
        tokens = self.tokens + response["body"]["usage"]["completion_tokens"]
        passes = self.passes + response["body"]["decoding"]["forward_passes"]
        return replace(self, done=self.done + 1, tokens=tokens, passes=passes, seconds=seconds)


def run(
    source: Path,
    target: Path,
    complete: Callable[[Iterator[Line], int], Iterable[Result]],
    *,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Answer the requests of `source` that `target` has no answer for, and append the answers there.

    `complete` is called with these requests and their number, if there are any, and gives a result for each, in any
    order. What is wrong with a file is raised before.
    """
    _check_files(source, target)
    left = _ids(source)
    total = len(left)
    with target.open("a+b") as file:
        lock(file, f"another process writes {target}; wait for it, or choose another output file")
        file.truncate(_answered(file, source, target, left))
        progress, began, synced = Progress(total=total, before=total - len(left)), time.perf_counter(), 0.0
        on_progress(progress)
        unanswered = (line for _, line in _requests(source) if line["custom_id"] in left)
        for result in complete(unanswered, len(left)) if left else ():
            if result["custom_id"] not in left:  # a worker that was lost may have answered before
                continue
            file.write(dumps(result) + b"\n")
            file.flush()
            left.remove(result["custom_id"])
            progress = progress.after(result, time.perf_counter() - began)
            if progress.seconds - synced > SYNC_S:
                os.fsync(file.fileno())
                synced = progress.seconds
            on_progress(progress)
        os.fsync(file.fileno())
    if left:
        raise WorkFailed(f"{len(left)} of {total} requests got no answer; the same command goes on")
    return progress


def complete(
    llm: Generator, lines: Iterable[Line], *, policy: Policy, settings: Settings, rows: int, name: str | None = None
) -> Iterator[Result]:
    """The result of each line, as soon as all of its texts are decoded; a line that is refused has its error there.

    `policy` and `settings` are the defaults of requests, `name` is what requests call the model. Up to `rows` texts are
    decoded together, and as many wait for a free row; no more lines are read. An error of the model or the device
    ends all lines and is raised.
    """
    config = ServerConfig(max_queue=MOST_TEXTS, served_model_name=name, seed=settings.seed)
    served = Served(llm, config, policy=policy, settings=settings)
    scheduler, unread = Scheduler(rows=rows), iter(lines)
    texts: dict[Request, tuple[Line, Answer]] = {}

    def refill() -> Iterator[Result]:
        """Read lines until as many texts wait as are decoded, so that a pass may free every row."""
        while len(scheduler.line) + len(scheduler.running) < 2 * rows and (line := next(unread, None)) is not None:
            try:
                body = request_of(line["body"], URLS[line["url"]])
                if body.stream:
                    raise wrong("a batch is not streamed; leave stream out", param="stream")
                answer = translate(body, served)
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
                yield _result(line, answer.whole() if error is None else failed(error))
        yield from refill()


def complete_on(replicas: Pool, lines: Iterator[Line], count: int, **options: Any) -> Iterator[Result]:
    """As `complete`, for `count` lines, on replicas of a model and its policy, which end with the last line."""

    def answer(opened: tuple[Generator, Policy], part: list[Line]) -> list[Result]:
        llm, policy = opened
        return list(complete(llm, part, policy=policy, **options))

    with closing(replicas):
        for results in replicas.map(answer, ((part,) for part in replicas.parts(lines, count, options["rows"]))):
            yield from results


def _result(line: Line, answer: ApiError | dict[str, Any]) -> Result:
    status, body = (answer.status_code, answer.body) if isinstance(answer, ApiError) else (200, answer)
    number = uuid.uuid4().hex
    response = {"status_code": status, "request_id": number, "body": body}
    return {"id": f"batch_req_{number}", "custom_id": line["custom_id"], "response": response, "error": None}


def _check_files(source: Path, target: Path) -> None:
    if "-" in (str(source), str(target)):
        raise UnmaskError("a batch can be taken up again, so it reads and writes files: - is not supported")
    if not source.is_file():
        raise UnmaskError(f"cannot read {source}: there is no such file")
    if target.exists() and not target.is_file():
        raise UnmaskError(f"cannot write {target}: it is there, and it is no file")
    if target.exists() and target.samefile(source):
        raise UnmaskError(f"{source} is input and output; choose another output file")


def _ids(source: Path) -> set[str]:
    """The ids of all requests, each of which is there once."""
    ids: set[str] = set()
    for place, line in _requests(source):
        if line["custom_id"] in ids:
            raise UnmaskError(f"{place}: custom_id {line['custom_id']!r:.80} is there a second time")
        ids.add(line["custom_id"])
    if not ids:
        raise UnmaskError(f"{source} has no requests")
    return ids


def _requests(source: Path) -> Iterator[tuple[str, Line]]:
    """The requests with their places; blank lines are passed over. A wrong body concerns its own answer alone."""
    with source.open("rb") as file:
        for number, raw in enumerate(file, 1):
            if raw.isspace():
                continue
            place = f"{source}, line {number}"
            line = loads(raw, place)
            if not isinstance(line, dict) or not {"custom_id", "method", "url", "body"} <= line.keys():
                raise UnmaskError(f"{place} must be an object with custom_id, method, url and body")
            name, asked = line["custom_id"], (line["method"], line["url"])
            if not isinstance(name, str) or not name:
                raise UnmaskError(f"{place}: custom_id must be a string that is not empty, got {name!r:.80}")
            if asked not in [("POST", url) for url in URLS]:
                got = f"{asked[0]!r:.80} {asked[1]!r:.80}"
                raise UnmaskError(f"{place}: method and url must be POST to {' or '.join(URLS)}, got {got}")
            yield place, line


def _answered(file: IO[bytes], source: Path, target: Path, left: set[str]) -> int:
    """Remove from `left` the ids that have an answer; returns where the last whole line ends."""
    end = file.seek(0)
    for number, raw in enumerate(file, 1):
        if not raw.endswith(b"\n"):
            break
        place = f"{target}, line {number}"
        try:
            left.remove(loads(raw, place)["custom_id"])
        except (UnmaskError, KeyError, TypeError) as error:
            what = f"is no answer to a request of {source}, or a second one"
            raise UnmaskError(f"{place} {what}; choose another output file") from error
        end += len(raw)
    return end
