"""Three problems, each solved twice by the model that the package carries: first one token per forward pass, then with
mean-field decoding. Watch the answers fill in; in a pipe, a few still pictures are printed instead.
"""

import time
from contextlib import nullcontext

from rich.console import Console

import unmask
from unmask import sandbox, tasks
from unmask.live import CanvasView

TITLES = {
    "sudoku": "A Sudoku (any valid board counts)",
    "word_problems": "A word problem",
    "list_functions": "A function from its description",
}
POLICIES = {"fixed": "one token per pass", "mean_field": "mean-field"}

console = Console(highlight=False)


def as_board(place: int) -> str:
    """White space behind each digit of a Sudoku: three boxes side by side, and three below one another."""
    if place >= 81:
        return ""
    return "\n" * (1 + (place in (26, 53))) if place % 9 == 8 else "  " if place % 3 == 2 else " "


def solve(llm: unmask.Generator, name: str, item: tasks.Item, policy: str) -> str:
    """Decode one item while it is drawn, and say what it cost and whether it is right."""
    console.print(f"{POLICIES[policy]}:", style="bold")
    task = tasks.get(name)
    settings = unmask.Settings(max_tokens=task.max_tokens, block_size=task.block_size)
    request = llm.request(item.prompt, policy=policy, settings=settings)
    view = CanvasView(request, **({"after": as_board} if name == "sudoku" else {}))
    began, frames, output = time.perf_counter(), [], None
    with view.on(console, keep=True) if console.is_terminal else nullcontext():
        for event in llm.stream(request):
            view.hear(event.step)
            frames.append(view.frame(console.width))
            output = event.output
    seconds = time.perf_counter() - began
    for index in [] if console.is_terminal else sorted({0, len(frames) // 2, len(frames) - 1}):
        console.print(f"after pass {index + 1}", frames[index], sep="\n")
    try:
        verdict = "right" if task.check(item, output.text) else "wrong"
    except sandbox.NoSandbox:
        verdict = "not run: install bubblewrap (apt-get install bubblewrap) to run programs"
    return f"{POLICIES[policy]:<20} {output.usage.forward_passes:4d} forward passes {seconds:6.1f} s   {verdict}"


def main() -> None:
    began = time.perf_counter()
    llm = unmask.load("tiny", device="cpu")
    for name, title in TITLES.items():
        [item] = tasks.get(name).generate(seed=3, n=1)
        console.rule(title)
        console.print(f"{item.prompt}\n", markup=False, soft_wrap=True)
        lines = [solve(llm, name, item, policy) for policy in POLICIES]
        console.print("\n" + "\n".join(lines) + "\n")
    console.print(f"Loaded and solved in {time.perf_counter() - began:.0f} s on this machine.")
    console.print('Next: . .venv/bin/activate; unmask generate "Countdown: 86,28,13,31,96"; docs/getting-started.md')


if __name__ == "__main__":
    main()
