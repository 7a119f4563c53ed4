"""Three problems, each solved twice by the model that the package carries: first one token per forward pass, then with
mean-field decoding. Watch the answers fill in; in a pipe, a few still pictures are printed instead.
"""

import time

from rich.console import Console
from rich.live import Live
from rich.text import Text

import unmask
from unmask import sandbox, tasks

TITLES = {
    "sudoku": "A Sudoku (any valid board counts)",
    "word_problems": "A word problem",
    "list_functions": "A function from its description",
}
POLICIES = {"fixed": "one token per pass", "mean_field": "mean-field"}

console = Console(highlight=False)


class Picture:
    """The answer as it stands after every pass: a dot for an open position, new tokens in green."""

    def __init__(self, llm: unmask.Generator, *, as_board: bool) -> None:
        self.llm, self.as_board = llm, as_board
        self.tokens: dict[int, str] = {}
        self.frames: list[Text] = []
        self.live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def on_step(self, event: unmask.StepEvent) -> None:
        for commit in event.committed:
            ends = commit.token_id in self.llm.spec.end_ids
            self.tokens[commit.position] = "" if ends else self.llm.codec.token_text(commit.token_id)
        self.frames.append(self.draw(event.block, {commit.position for commit in event.committed}))
        if self.live:
            self.live.update(self.frames[-1], refresh=True)

    def draw(self, block: tuple[int, int], fresh: set[int]) -> Text:
        frame = Text()
        first = min(block[0], *self.tokens) if self.tokens else block[0]
        last = first + 81 if self.as_board else max(block[1], *self.tokens) if self.tokens else block[1]
        for place, position in enumerate(range(first, last)):
            frame.append(self.tokens.get(position, "·"), style="bold green" if position in fresh else "")
            if self.as_board:
                frame.append("\n" * (1 + (place in (26, 53))) if place % 9 == 8 else "  " if place % 3 == 2 else " ")
        return frame

    def stills(self) -> list[tuple[int, Text]]:
        return [(index + 1, self.frames[index]) for index in sorted({0, len(self.frames) // 2, len(self.frames) - 1})]


def solve(llm: unmask.Generator, task: tasks.Task, item: tasks.Item, policy: str, picture: Picture) -> str:
    """Decode one item while it is drawn, and say what it cost and whether it is right."""
    console.print(f"{POLICIES[policy]}:", style="bold")
    settings = unmask.Settings(max_tokens=task.max_tokens, block_size=task.block_size)
    began = time.perf_counter()
    if picture.live:
        with picture.live:
            output = llm.generate(item.prompt, policy=policy, settings=settings, on_step=picture.on_step)
    else:
        output = llm.generate(item.prompt, policy=policy, settings=settings, on_step=picture.on_step)
        for number, frame in picture.stills():
            console.print(f"after pass {number}")
            console.print(frame)
    seconds = time.perf_counter() - began
    try:
        verdict = "right" if task.check(item, output.text) else "wrong"
    except sandbox.NoSandbox:
        verdict = "not run: install bubblewrap (apt-get install bubblewrap) to run programs"
    return f"{POLICIES[policy]:<20} {output.usage.forward_passes:4d} forward passes {seconds:6.1f} s   {verdict}"


def main() -> None:
    began = time.perf_counter()
    llm = unmask.load("tiny", device="cpu")
    for name, title in TITLES.items():
        task = tasks.get(name)
        [item] = task.generate(seed=3, n=1)
        console.rule(title)
        console.print(f"{item.prompt}\n", markup=False, soft_wrap=True)
        lines = [solve(llm, task, item, policy, Picture(llm, as_board=name == "sudoku")) for policy in POLICIES]
        console.print("\n" + "\n".join(lines) + "\n")
    console.print(f"Loaded and solved in {time.perf_counter() - began:.0f} s on this machine.")
    console.print('Next: unmask generate "Countdown: 86,28,13,31,96", unmask policies, docs/getting-started.md')


if __name__ == "__main__":
    main()
