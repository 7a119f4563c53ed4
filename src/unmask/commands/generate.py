"""`unmask generate`: prompts from arguments, files and pipes in, text out."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Generator as Yields
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from unmask import flags, progress, terminal
from unmask.errors import Interrupted, UnmaskError
from unmask.options import option
from unmask.parsing import with_flags
from unmask.settings import Settings

if TYPE_CHECKING:
    from unmask.engine.generator import Generator
    from unmask.engine.scheduler import Request
    from unmask.types import Output


STDIN = Path("-")


def open_model(chosen: flags.Model) -> tuple[Any, Any]:
    """The model and the policy, with a sign of life while a large model loads."""
    with progress.loading(chosen.model) as on_bytes:
        return chosen.open(on_bytes=on_bytes)


@with_flags(Settings, "Settings")
@with_flags(flags.Model, "Model and policy")
def generate(
    chosen: flags.Model,
    settings: Settings,
    prompts: Sequence[str] = option((), "Several are decoded together.", "PROMPT"),
    file: Sequence[Path] = option((), "Read a prompt; .jsonl: many; -: stdin (may be repeated)."),
    chat: bool = option(False, "Put each prompt into the checkpoint's chat template.", "--chat"),
    infill: bool = option(False, "Fill the mask tokens inside the prompt.", "--infill"),
    trace: Path | None = option(None, "Record every forward pass to this file (JSON lines)."),
    trace_overlap: bool = option(False, "Record the overlap matrices too.", "--trace-overlap"),
    batch_size: int = flags.BATCH_SIZE,
    live: bool | None = flags.LIVE,
    as_json: bool = option(False, "Print JSON, one object per line; --json=full: with canvas and step map.", "--json"),
    json_full: bool = option(False, "", "--json-full", hidden=True),
) -> None:
    """Continue one or more prompts (or fill the masks in them)."""
    if chat and infill:
        raise UnmaskError("--chat and --infill exclude each other")
    if trace_overlap and trace is None:
        raise UnmaskError("--trace-overlap needs --trace FILE")
    given = _read_prompts(prompts, file)
    texts, asking, as_json = [each.text for each in given], iter(given), as_json or json_full
    flags.check_writable(trace)
    watched = terminal.watches(live, prompts=len(texts), as_json=as_json)

    from unmask.engine.detail import Detail  # torch, for which a wrong command does not wait

    llm, policy = open_model(chosen)
    terminal.note(chosen.about(texts) or _hint_of_chat(llm, texts, plain=not (chat or infill)))
    asked: list[Any] = [[{"role": "user", "content": text}] for text in texts] if chat else texts
    how = {"policy": policy, "settings": settings, "trace": trace is not None and Detail(overlap=trace_overlap)}
    requests = [llm.request(prompt, infill=infill, **how) for prompt in asked]

    def show(output: Output) -> None:
        prompt = next(asking)
        if as_json:
            print(prompt.result(output.to_dict(), full=json_full), flush=True)
        else:
            terminal.show_text(output.text)

    with _traces_saved(requests, trace):
        if watched or (len(texts) == 1 and terminal.is_terminal(sys.stdout) and not (as_json or infill)):
            terminal.show_answer(llm, requests[0], live=watched, show=show)
        else:
            with progress.decoding(len(requests)) as on_step:
                llm.run(requests, batch_size=batch_size, on_step=on_step, on_output=show)


def _hint_of_chat(llm: Generator, texts: list[str], *, plain: bool) -> str | None:
    """A note where a checkpoint that was trained on conversations continues `plain` prompts; None where none is due."""
    if not plain or not llm.spec.converses:
        return None
    # A prompt with special tokens in it was put into a template by hand.
    if any(llm.codec.special_ids & {*llm.codec.encode(text, special=False)} for text in texts):
        return None
    return f"{llm.spec.name} answers messages; with --chat the prompt goes through its chat template"


@contextlib.contextmanager
def _traces_saved(requests: list[Request], path: Path | None) -> Yields[None]:
    """Write the traces of all requests to one file in the end, also if the work fails or is interrupted."""
    from unmask.trace.record import Trace

    try:
        yield
    except KeyboardInterrupt:
        kept = "" if path is None else f"; {path} has the passes up to here"
        raise Interrupted(f"interrupted{kept}") from None
    finally:
        if path is not None:
            Trace.join([request.trace for request in requests if request.trace is not None]).save(path)


class Given(NamedTuple):
    """A prompt, and the id that its line of a file gave it, which its result keeps."""

    text: str
    id: Any = None

    def result(self, output: dict[str, Any], *, full: bool) -> str:
        """A line of JSON: the id, and an output's fields; the canvas and step map only if wanted."""
        kept = {key: value for key, value in output.items() if full or key not in ("canvas_ids", "step_map")}
        return json.dumps(({} if self.id is None else {"id": self.id}) | kept, ensure_ascii=False)


def _read_prompts(typed: Sequence[str], files: Sequence[Path]) -> list[Given]:
    """The prompts of a command: its arguments and files, or else the text that is piped in; `-` is that text, too."""
    prompts = [given for text in typed for given in (_prompts_in(STDIN) if text == "-" else [Given(text)])]
    prompts += [given for path in files for given in _prompts_in(path)]
    if not prompts and sys.stdin is not None and not sys.stdin.isatty():
        prompts = [given for given in _prompts_in(STDIN) if given.text]
    if not prompts:
        raise UnmaskError("no prompt: give one as an argument, with --file, or through a pipe")
    for number, given in enumerate(prompts, 1):
        if not given.text:
            which = "the prompt" if len(prompts) == 1 else f"prompt {number} of {len(prompts)}"
            raise UnmaskError(f"{which} is empty")
    return prompts


def _prompts_in(path: Path) -> list[Given]:
    try:
        text = sys.stdin.read() if path == STDIN else path.read_text(encoding="utf-8")
    except OSError as error:
        raise UnmaskError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UnmaskError(f"{'standard input' if path == STDIN else path} is not UTF-8 text") from error
    if path.suffix != ".jsonl":
        return [Given(text.removesuffix("\n"))]
    return [_prompt_in(line, f"{path}:{number}") for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def _prompt_in(line: str, place: str) -> Given:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise UnmaskError(f"{place} is not JSON: {error}") from error
    fields = value if isinstance(value, dict) else {"prompt": value}
    if not isinstance(fields.get("prompt"), str):
        raise UnmaskError(f"{place} must be a string, or an object with a string under 'prompt'")
    return Given(fields["prompt"], fields.get("id"))
