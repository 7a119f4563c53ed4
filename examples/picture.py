"""The pictures of the documentation, made by the model that the package carries. Prints an SVG file.

python examples/picture.py demo > docs/images/demo.svg    a Sudoku, one token per pass beside mean-field, animated
python examples/picture.py pass > docs/images/pass.svg    what one forward pass predicts and which tokens are committed
"""

import sys
from html import escape

import torch

import unmask
from unmask import tasks

SECONDS_PER_PASS, REST = 0.2, 4.0  # of the animation: both boards take the same time for a pass
CELL, THRESHOLD = 26, 0.85
PROMPT, SHOWN = "Countdown: 7,8,9,24", 14
STYLE = """
svg{--paper:#fff;--ink:#1c2430;--quiet:#657080;--line:#ccd3dc;--new:#0b7a4b;--bar:#8fb7e8;--faint:#f1f4f8}
@media (prefers-color-scheme:dark){svg{--paper:#151a21;--ink:#e8edf3;--quiet:#98a4b3;--line:#3a4452;--new:#4fd39a;
--bar:#3d6da8;--faint:#1f2630}}
text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;--own:var(--ink);fill:var(--own);text-anchor:middle}
.card{fill:var(--paper);stroke:var(--line)}.l{text-anchor:start;font-family:system-ui,sans-serif}.q{--own:var(--quiet)}
.s{font-size:11px}.b{font-weight:700}.n{--own:var(--new);font-weight:700}.line{stroke:var(--line);fill:none}
.box{fill:var(--faint);stroke:var(--line)}.done{fill:none;stroke:var(--new);stroke-width:1.5}.bar{fill:var(--bar)}
.go{fill:var(--new)}.mark{stroke:var(--quiet);stroke-dasharray:3 3}
"""


def text(x: float, y: float, words: str, kind: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, kind: str, radius: int = 3) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}" class="{kind}"/>'


def picture(width: int, height: int, about: str, style: str, parts: list[str]) -> str:
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{about}">'
    card = box(0.5, 0.5, width - 1, height - 1, "card", 8)
    return "\n".join([f"{head}\n<title>{about}</title>\n<style>{STYLE}{style}</style>", card, *parts, "</svg>"])


def demo(llm: unmask.Generator) -> str:
    """Two boards. A digit appears when its pass is done, in colour at first."""
    task = tasks.get("sudoku")
    [item] = task.generate(seed=3, n=1)
    settings = unmask.Settings(max_tokens=task.max_tokens, block_size=task.block_size)
    outputs = {
        title: llm.generate(item.prompt, policy=policy, settings=settings)
        for title, policy in (("one token per pass", "fixed"), ("mean-field", "mean_field"))
    }
    most = max(output.usage.forward_passes for output in outputs.values())
    whole = most * SECONDS_PER_PASS + REST
    parts, rules = [], [f"text.d{{animation-duration:{whole:g}s;animation-iteration-count:infinite}}"]
    for number in range(most):
        begin, end = (100 * (number + more) * SECONDS_PER_PASS / whole for more in (1, 3))
        rules += [
            f"@keyframes p{number}{{0%,{begin:.2f}%{{opacity:0}}{begin + 0.01:.2f}%{{opacity:1;fill:var(--new)}}"
            f"{end:.2f}%{{fill:var(--new)}}{end + 0.01:.2f}%,to{{opacity:1;fill:var(--own)}}}}",
            f".p{number}{{animation-name:p{number}}}",
        ]
    for left, (title, output) in zip((24, 330), outputs.items(), strict=True):
        passes, verdict = output.usage.forward_passes, "right" if task.check(item, output.text) else "wrong"
        parts += [text(left, 30, title, "l b"), text(left, 48, f"{passes} forward passes, {verdict}", "l q s")]
        parts += [board(left, 60, output, item.prompt.removeprefix("Sudoku: "))]
    rules.append("@media (prefers-reduced-motion:reduce){text.d{animation:none}}")
    return picture(588, 318, "A Sudoku, one token per forward pass beside mean-field decoding", "\n".join(rules), parts)


def board(left: float, top: float, output: unmask.Output, given: str) -> str:
    parts = [box(left, top, 9 * CELL, 9 * CELL, "box")]
    for third in (3, 6):
        x, y = left + third * CELL, top + third * CELL
        parts.append(f'<path class="line" d="M{x:g} {top}v{9 * CELL}M{left} {y:g}h{9 * CELL}"/>')
    for place, (digit, step) in enumerate(zip(output.text, output.step_map, strict=False)):
        x, y = left + (place % 9 + 0.5) * CELL, top + (place // 9 + 0.68) * CELL
        parts.append(text(x, y, digit, f"d p{step}" + (" b" if given[place] == "0" else " q")))
    return "\n".join(parts)


def one_pass(llm: unmask.Generator) -> str:
    """The first pass over a countdown: candidates with their probabilities, intensities, and the canvas afterwards."""
    prompt = llm.generate(PROMPT, max_tokens=1, trace=True).trace.header["prompts"][0]["token_ids"]
    logits = llm.forward([*prompt, *[llm.spec.mask_id] * 32])[:, len(prompt) :]
    logits[..., llm.spec.mask_id] = -torch.inf
    result = unmask.rules.mean_field_commit(logits, torch.ones(logits.shape[:2], dtype=torch.bool), threshold=THRESHOLD)
    likely = logits[0].softmax(-1).topk(2)
    step, left = 46, 176
    parts = [
        text(20, 46, "canvas before", "l b"),
        text(20, 112, "the model predicts", "l b"),
        text(20, 130, "each position alone", "l q s"),
        text(20, 220, "the rule weighs", "l b"),
        text(20, 238, "them together", "l q s"),
        text(20, 322, "canvas after", "l b"),
        text(left, 22, f"{PROMPT}  →", "l q s"),
        f'<path class="mark" d="M{left} {262 - 60 * THRESHOLD:g}h{SHOWN * step - 8}"/>',
        text(left + SHOWN * step + 10, 266 - 60 * THRESHOLD, f"{THRESHOLD}", "s q"),
    ]
    for place in range(SHOWN):
        x = left + place * step
        committed, intensity = bool(result.commit[0, place]), float(result.intensity[0, place])
        best, second = (llm.codec.token_text(int(token)) for token in likely.indices[place])
        parts += [box(x, 30, 38, 26, "box"), text(x + 19, 48, "▒", "q")]
        for line, (word, p) in enumerate(zip((best, second), likely.values[place].tolist(), strict=True)):
            y = 96 + 36 * line
            word = "end" if word.startswith("<|") else word
            at, size = (10, "") if len(word) == 1 else (7, "s")
            parts += [box(x, y + 4, 38 * p, 6, "bar", 1), text(x + at, y, word, size)]
            parts += [text(x + 29, y, f".{100 * p:02.0f}", "s q")]
        parts += [box(x + 9, 262 - 60 * intensity, 20, 60 * intensity, "go" if committed else "bar", 1)]
        parts += [box(x, 304, 38, 26, "done" if committed else "box")]
        parts += [text(x + 19, 322, *((best, "n") if committed else ("▒", "q")))]
    about = "One forward pass: predictions of every open position, intensities of the rule, tokens committed"
    return picture(868, 352, about, "", parts)


if __name__ == "__main__":
    llm = unmask.load("tiny", device="cpu")
    print(one_pass(llm) if "pass" in sys.argv[1:] else demo(llm))
