"""`unmask chat`: a conversation with a model, and the few commands that change how it goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from unmask import flags
from unmask.commands.generate import open_model
from unmask.errors import UnmaskError
from unmask.options import option
from unmask.settings import Settings
from unmask.terminal import is_terminal, note, show_answer, stderr, watches

if TYPE_CHECKING:
    from unmask.engine.generator import Generator
    from unmask.policies import Policy

HELP = (
    "/reset forgets the conversation; /policy NAME [key=value ...] changes the policy; /policy shows it; "
    "/help lists the commands; end of input or /quit leaves"
)


def chat(
    model: flags.Model,
    settings: Settings = flags.EARLY_STOP,
    system: str | None = option(None, "A system message to begin with.", metavar="TEXT"),
    live: bool | None = flags.LIVE,
) -> None:
    """Talk with a model; /help lists the commands of the conversation."""
    watched = watches(live)
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
        output = show_answer(self.llm, request, live=live)
        self.messages = [*asked, {"role": "assistant", "content": output.text}]

    def converse(self, about: Callable[[list[str]], str | None], *, live: bool) -> None:
        """Read lines from the user until the end of input; answers are shown, commands and errors go to stderr.

        `about` gives a note on prompts that the model was not trained for; the note is shown once.
        """
        interactive, told, aside = is_terminal(sys.stdin), None, stderr()
        if interactive:
            with suppress(ImportError):  # Windows
                import readline  # noqa: F401  (line editing and history for input())

            aside.print(HELP, style="dim", markup=False)
        while True:
            try:
                line = input("> " if interactive else "").strip()
            except EOFError:
                return
            if line.split()[:1] == ["/quit"]:
                return
            try:
                if line.startswith("/"):
                    aside.print(self.command(line), markup=False)
                elif line:
                    if told is None:
                        note(told := about([line]))
                    self.answer(line, live=live)
            except (KeyboardInterrupt, UnmaskError) as error:
                if not interactive:
                    raise
                interrupted = isinstance(error, KeyboardInterrupt)
                goes_on = "\ninterrupted; the conversation goes on as before"
                aside.print(goes_on if interrupted else f"unmask: {error}", markup=False)
