"""The same answer twice: one token per forward pass, then every set of tokens that is safe to commit together."""

import sys
import time

import unmask

PROMPT = "How do you write so fast?"


def watch(llm: unmask.Generator, policy: str) -> unmask.Output:
    """Decode while the text fills in: redrawn in place in a terminal, a few lines of it elsewhere."""
    shown: dict[int, str] = {}
    live = sys.stdout.isatty()

    def draw(event: unmask.StepEvent) -> None:
        shown.update({commit.position: llm.codec.token_text(commit.token_id) for commit in event.committed})
        first = event.block[0] if not shown else min(shown)
        line = "".join(shown.get(position, "·") for position in range(first, first + 150)).replace("<|endoftext|>", " ")
        if live:
            print(f"\r\033[2K{line[-1 - (line.rfind('·') >= 0) * 0 - 150:][:150]}", end="", flush=True)
            time.sleep(0.02)
        elif event.step % 12 == 0 or event.finished:
            print(f"  pass {event.step + 1:3d}  {line}")

    output = llm.generate(PROMPT, policy=policy, max_tokens=160, on_step=draw)
    print("\n" if live else "")
    return output


def main() -> None:
    llm = unmask.load("toy")
    print(f"prompt: {PROMPT}\n")
    for policy in ("fixed", "mean_field"):
        print(f"policy {policy}")
        began = time.perf_counter()
        output = watch(llm, policy)
        print(f"{output.text}\n{output.usage.forward_passes} forward passes, {time.perf_counter() - began:.1f} s\n")
    print('Next: unmask generate "your prompt" --model PATH_OR_NAME, unmask policies, README.md')


if __name__ == "__main__":
    main()
