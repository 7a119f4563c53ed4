"""The files of a batch: requests are read line by line, answers are appended as they come.

A run that was killed is taken up by the next one: a last line that was cut short is cut off, and a request whose answer
is there is not decoded again. Of a million requests only the ids are held in memory. Knows nothing of models.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from unmask.batch.complete import URLS, Line, Result
from unmask.errors import UnmaskError, WorkFailed
from unmask.locks import lock
from unmask.serve.strict_json import dumps, loads

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


def _check_files(source: Path, target: Path) -> None:
    if "-" in (str(source), str(target)):
        raise UnmaskError("a batch can be taken up again, so it reads and writes files: - is not supported")
    if not source.is_file():
        raise UnmaskError(f"cannot read {source}: there is no such file")
    if target.exists() and target.samefile(source):
        raise UnmaskError(f"{source} is input and output; choose another output file")


def _ids(source: Path) -> set[str]:
    """The ids of all requests, each of which is there once."""
    ids: set[str] = set()
    for number, line in _requests(source):
        if line["custom_id"] in ids:
            raise UnmaskError(f"{source}, line {number}: custom_id {line['custom_id']!r:.80} is there a second time")
        ids.add(line["custom_id"])
    if not ids:
        raise UnmaskError(f"{source} has no requests")
    return ids


def _requests(source: Path) -> Iterator[tuple[int, Line]]:
    """The requests with the numbers of their lines; blank lines are passed over."""
    with source.open("rb") as file:
        for number, raw in enumerate(file, 1):
            if not raw.isspace():
                place = f"{source}, line {number}"
                yield number, _request(loads(raw, place), place)


def _request(line: object, place: str) -> Line:
    """The line, if it is a request; whether its body is right concerns its answer alone."""
    if not isinstance(line, dict) or not {"custom_id", "method", "url", "body"} <= line.keys():
        raise UnmaskError(f"{place} must be an object with custom_id, method, url and body")
    if not isinstance(line["custom_id"], str) or not line["custom_id"]:
        raise UnmaskError(f"{place}: custom_id must be a string that is not empty, got {line['custom_id']!r:.80}")
    if line["method"] != "POST" or line["url"] not in list(URLS):
        wanted = f"POST to {' or '.join(URLS)}"
        raise UnmaskError(f"{place}: method and url must be {wanted}, got {line['method']!r:.80} {line['url']!r:.80}")
    return line


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
