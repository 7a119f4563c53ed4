"""`unmask generate` and `unmask chat`: prompts from arguments, files and pipes, or a conversation; text out."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Generator as Yields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask import flags, progress, terminal
from unmask.errors import Interrupted, UnmaskError
from unmask.options import option
from unmask.settings import Settings

if TYPE_CHECKING:
    from unmask.engine.generator import Generator
    from unmask.engine.scheduler import Request
    from unmask.policies import Policy
    from unmask.types import Output

STDIN = Path("-")
HELP = (
    "/reset forgets the conversation; /policy NAME [key=value ...] changes the policy; /policy shows it; "
    "/help lists the commands; end of input or /quit leaves"
)


def open_model(model: flags.Model) -> tuple[Any, Any]:
    """The model and the policy, with a sign of life while a large model loads."""
    with progress.loading(model.model) as on_bytes:
        return model.open(on_bytes=on_bytes)


def generate(
    model: flags.Model,
    settings: Settings,
    prompts: Sequence[str] = option((), "Several are decoded together.", "PROMPT"),
    file: Sequence[Path] = option((), "Read a prompt; .jsonl: many; -: stdin (may be repeated)."),
    chat: bool = option(False, "Put each prompt into the checkpoint's chat template.", "--chat"),
    infill: bool = option(False, "Fill the mask tokens inside the prompt.", "--infill"),
    trace: Path | None = option(None, "Record every forward pass to this file (JSON lines)."),
    trace_overlap: bool = option(False, "Record the overlap matrices too.", "--trace-overlap"),
    batch_size: int = flags.BATCH_SIZE,
    live: bool | None = flags.LIVE,
    as_json: bool = flags.JSON,
    json_full: bool = option(False, "The same with canvas and step map, also as --json=full.", "--json-full"),
) -> None:
    """Continue one or more prompts (or fill the masks in them)."""
    if chat and infill:
        raise UnmaskError("--chat and --infill exclude each other")
    if trace_overlap and trace is None:
        raise UnmaskError("--trace-overlap needs --trace FILE")
    given = _read_prompts(prompts, file)
    texts, ids = [each["prompt"] for each in given], [each.get("id") for each in given]
    as_json = as_json or json_full
    flags.check_writable(trace)
    watched = terminal.watches(live, prompts=len(texts), as_json=as_json)

    from unmask.engine.plan import Detail  # torch, for which a wrong command does not wait

    llm, policy = open_model(model)
    terminal.note(model.about(texts) or (None if chat or infill else _hint_of_chat(llm, texts)))
    asked: list[Any] = [[{"role": "user", "content": text}] for text in texts] if chat else texts
    how = {"policy": policy, "settings": settings, "trace": trace is not None and Detail(overlap=trace_overlap)}
    requests = [llm.request(prompt, infill=infill, **how) for prompt in asked]

    def show(output: Output) -> None:
        prompt_id = ids.pop(0)
        if not as_json:
            terminal.show_text(output.text)
            return
        left_out = () if json_full else ("canvas_ids", "step_map")
        kept = {key: value for key, value in output.to_dict().items() if key not in left_out}
        found = kept if prompt_id is None else {"id": prompt_id} | kept
        print(json.dumps(found, ensure_ascii=False), flush=True)

    with _traces_saved(requests, trace):
        if watched or (len(texts) == 1 and terminal.is_terminal(sys.stdout) and not (as_json or infill)):
            terminal.show_answer(llm, requests[0], live=watched, show=show)
        else:
            with progress.decoding(len(requests)) as on_step:
                llm.run(requests, batch_size=batch_size, on_step=on_step, on_output=show)


def _hint_of_chat(llm: Generator, texts: list[str]) -> str | None:
    """A note where a checkpoint that was trained on conversations continues plain prompts; None where none is due."""
    if not llm.spec.converses:
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


def _read_prompts(typed: Sequence[str], files: Sequence[Path]) -> list[dict[str, Any]]:
    """The prompts of arguments and files, or else of what is piped in, which `-` stands for; some have an id."""
    prompts = [each for text in typed for each in (_prompts_in(STDIN) if text == "-" else [{"prompt": text}])]
    prompts += [each for path in files for each in _prompts_in(path)]
    if not prompts and sys.stdin is not None and not sys.stdin.isatty():
        prompts = [each for each in _prompts_in(STDIN) if each["prompt"]]
    if not prompts:
        raise UnmaskError("no prompt: give one as an argument, with --file, or through a pipe")
    for number, each in enumerate(prompts, 1):
        if not each["prompt"]:
            which = "the prompt" if len(prompts) == 1 else f"prompt {number} of {len(prompts)}"
            raise UnmaskError(f"{which} is empty")
    return prompts


def _prompts_in(path: Path) -> list[dict[str, Any]]:
    try:
        text = sys.stdin.read() if path == STDIN else path.read_text(encoding="utf-8")
    except OSError as error:
        raise UnmaskError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UnmaskError(f"{'standard input' if path == STDIN else path} is not UTF-8 text") from error
    if path.suffix != ".jsonl":
        return [{"prompt": text.removesuffix("\n")}]
    return [_prompt_in(line, f"{path}:{number}") for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def _prompt_in(line: str, place: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise UnmaskError(f"{place} is not JSON: {error}") from error
    found = value if isinstance(value, dict) else {"prompt": value}
    if not found.get("prompt") or not isinstance(found["prompt"], str):
        raise UnmaskError(f"{place} must be a text that is not empty, or an object with one under 'prompt'")
    return found


def chat(
    model: flags.Model,
    settings: Settings = flags.EARLY_STOP,
    system: str | None = option(None, "A system message to begin with.", metavar="TEXT"),
    live: bool | None = flags.LIVE,
) -> None:
    """Talk with a model; /help lists the commands of the conversation."""
    watched = terminal.watches(live)
    llm, policy = open_model(model)
    Conversation(llm, policy=policy, settings=settings, system=system).converse(model.about, live=watched)


class Conversation:
    """Messages in turn, answered through the checkpoint's chat template."""

    def __init__(self, llm: Generator, *, policy: Policy, settings: Settings, system: str | None = None) -> None:
        if llm.codec.chat_template is None:
            raise UnmaskError(f"{llm.spec.name} has no chat template to talk through; use `unmask generate`")
        self.llm, self.policy, self.settings = llm, policy, settings
        self.opening = [{"role": "system", "content": system}] if system else []
        self.messages = list(self.opening)

    def command(self, line: str) -> str:
        """Carry out a line that begins with a slash and say what was done."""
        from unmask.policies import describe

        verb, *words = line.split()
        if verb == "/help":
            return HELP
        if verb == "/reset":
            self.messages = list(self.opening)
            return "the conversation starts afresh"
        if verb == "/policy":
            if words:
                self.policy = flags.choose_policy(self.llm.spec, words[0], words[1:])
            return " ".join(f"{key}={value}" for key, value in describe(self.policy).items())
        raise UnmaskError(f"unknown command {verb!r}; {HELP}")

    def answer(self, text: str, *, live: bool) -> None:
        """Show the answer to a text. The exchange is remembered once it is complete."""
        asked = [*self.messages, {"role": "user", "content": text}]
        request = self.llm.request(asked, policy=self.policy, settings=self.settings)
        output = terminal.show_answer(self.llm, request, live=live)
        self.messages = [*asked, {"role": "assistant", "content": output.text}]

    def converse(self, about: Callable[[list[str]], str | None], *, live: bool) -> None:
        """Read lines from the user until the end of input; answers are shown, commands and errors go to stderr.

        `about` gives a note on prompts that the model was not trained for; the note is shown once.
        """
        interactive, told, aside = terminal.is_terminal(sys.stdin), None, terminal.stderr()
        if interactive:
            with contextlib.suppress(ImportError):  # Windows
                import readline  # noqa: F401  (line editing and history for input())

            aside.print(HELP, style="dim", markup=False)
        for line in _typed("> " if interactive else ""):
            try:
                if line.startswith("/"):
                    aside.print(self.command(line), markup=False)
                elif line:
                    if told is None:
                        terminal.note(told := about([line]))
                    self.answer(line, live=live)
            except (KeyboardInterrupt, UnmaskError) as error:
                if not interactive:
                    raise
                goes_on = "\ninterrupted; the conversation goes on as before"
                aside.print(f"unmask: {error}" if isinstance(error, UnmaskError) else goes_on, markup=False)


def _typed(prompt: str) -> Iterator[str]:
    """Lines of the user, until the end of input or /quit."""
    with contextlib.suppress(EOFError):
        while (line := input(prompt).strip()).split()[:1] != ["/quit"]:
            yield line
