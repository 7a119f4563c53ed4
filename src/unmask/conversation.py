"""A conversation with a model: its messages so far, and the few commands that change how it goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unmask import flags
from unmask.errors import UnmaskError
from unmask.settings import Settings

if TYPE_CHECKING:
    from unmask.engine.generator import Generator
    from unmask.engine.scheduler import Request
    from unmask.policies import Policy

HELP = (
    "/reset forgets the conversation; /policy NAME [key=value ...] changes the policy; /policy shows it; /quit leaves"
)


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

    def request(self, text: str) -> Request:
        """The request for an answer to the text."""
        return self.llm.request(self._asked(text), policy=self.policy, settings=self.settings)

    def remember(self, text: str, answer: str) -> None:
        """Keep an exchange that is complete."""
        self.messages = [*self._asked(text), {"role": "assistant", "content": answer}]

    def _asked(self, text: str) -> list[dict[str, str]]:
        return [*self.messages, {"role": "user", "content": text}]
