"""`unmask generate` and `unmask chat`: prompts in, text out."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator as Yields
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask import flags, progress, terminal
from unmask.errors import Interrupted, UnmaskError
from unmask.options import option
from unmask.parsing import with_flags
from unmask.prompt_files import read_prompts
from unmask.settings import Settings

if TYPE_CHECKING:
    from unmask.engine.generator import Generator
    from unmask.engine.scheduler import Request
    from unmask.types import Output


def open_model(chosen: flags.Model) -> tuple[Any, Any]:
    """The model and the policy, with a sign of life while a large model loads."""
    with progress.loading(chosen.model) as on_bytes:
        return chosen.open(on_bytes=on_bytes)


@with_flags(Settings, "Settings")
@with_flags(flags.Model, "Model and policy")
def generate(
    chosen: flags.Model,
    settings: Settings,
    prompts: Sequence[str] = option((), "Several are decoded together.", argument=True, metavar="PROMPT"),
    file: Sequence[Path] = option((), "Read a prompt; .jsonl: many; -: stdin (may be repeated).", metavar="FILE"),
    chat: bool = option(False, "Put each prompt into the checkpoint's chat template.", "--chat"),
    infill: bool = option(False, "Fill the mask tokens inside the prompt.", "--infill"),
    trace: Path | None = option(None, "Record every forward pass to this file (JSON lines).", metavar="FILE"),
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
    given = read_prompts(prompts, file)
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


@with_flags(Settings, "Settings", early_stop=True)
@with_flags(flags.Model, "Model and policy")
def chat(
    chosen: flags.Model,
    settings: Settings,
    system: str | None = option(None, "A system message to begin with."),
    live: bool | None = flags.LIVE,
) -> None:
    """Talk with a model; /help lists the commands of the conversation."""
    from unmask.conversation import Conversation

    watched = terminal.watches(live)
    llm, policy = open_model(chosen)
    Conversation(llm, policy=policy, settings=settings, system=system).converse(chosen.about, live=watched)


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
