"""Figures of the studies. Colours are Okabe and Ito's, made for all kinds of eyes; markers differ as well.

The same numbers give the same file, byte for byte: no dates, no random ids, the fonts that matplotlib carries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.errors import UnmaskError
from unmask.report.statistics import Estimate
from unmask.report.compare import baseline_of, groups, questions, sweep_of, sweeps
from unmask.report.labels import changes, labels, with_parameters
from unmask.report.measured import Measured, value_of
from unmask.report.studies import STUDIES, curves, file_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Look = tuple[str, Any, str]  # colour, marker, line
Lines = list[tuple[str, Sequence[Measured]]]  # the label and the cells of each line

FILES = ("png", "svg")
FIGURES = dict.fromkeys(("main", "curves"), "accuracy against forward passes")  # kind of study -> title
FIGURES |= {"blocks": "block size", "sensitivity": "sensitivity of mean-field"}
NFE, ACCURACY = "forward passes per item (NFE)", "accuracy (%)"
KNOBS = {"threshold": "threshold τ", "iterations": "updates R", "block_size": "block size (tokens), log scale"}
CLOSE, FAST = 12, 2.2  # the close-up: points of accuracy below the best, and passes over the fewest

COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = {"mean_field": "o", "threshold": "s", "factor": "D", "eb": "^", "klass": "v", "local_leap": "P", "dawn": "X"}
STYLES: dict[str, Look] = {p: (c, m, "-") for (p, m), c in zip(MARKERS.items(), COLOURS, strict=True)}
# The colours come back with another marker and another line.
STYLES |= {"dapd": (COLOURS[2], "<", "--"), "wino": (COLOURS[3], ">", "--"), "fixed": ("#666666", "*", "--")}
STYLES |= {"entropy": (COLOURS[1], "p", "--"), "margin": (COLOURS[4], "h", "--"), "random": (COLOURS[5], "d", "--")}
# A policy that is not known here, or a second line of one that is: colours and markers that nothing above has.
# The markers are stars: (points, 1, degrees by which it is turned).
STARS = {"#882255": (4, 1, 0), "#332288": (6, 1, 0), "#999933": (4, 1, 45), "#661100": (8, 1, 0)}
OTHERS = [(colour, star, dash) for dash in (":", "-.") for colour, star in STARS.items()]
SIZES = {"*": 9, "P": 7, "X": 7} | dict.fromkeys(STARS.values(), 9)  # of markers that look small

LOOK: dict[Any, Any] = {"font.size": 9, "grid.color": "#dddddd", "grid.linewidth": 0.6, "savefig.dpi": 160}
LOOK |= {"lines.linewidth": 1.3, "lines.markeredgecolor": "white", "lines.markeredgewidth": 0.4}
LOOK |= {"axes.grid": True, "axes.axisbelow": True, "svg.hashsalt": "unmask"}
LOOK |= dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False)


def check_installed() -> None:
    """Say in one line how to get what figures need."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UnmaskError("figures need matplotlib: pip install 'unmask[plot]'") from error


def draw(kind: str, cells: Sequence[Measured], folder: Path, formats: Sequence[str]) -> list[Path]:
    """The figures of one kind of study, one for each model and task, as files in the folder."""
    import matplotlib

    written: list[Path] = []
    for same in groups(STUDIES[kind].choose(cells), questions):
        done = [cell for cell in same if cell.complete]
        with matplotlib.rc_context(LOOK):
            if (found := figure(kind, done)) is None:
                continue
            title = f"{done[0].model}, {done[0].cell.task}: {FIGURES[kind]} ({done[0].done:,} items, 95 % intervals)"
            found.suptitle(title, x=0.01, ha="left", fontsize="large")
            name = file_name(f"{kind}-{done[0].model}-{done[0].cell.task}", [path.stem for path in written])
            folder.mkdir(parents=True, exist_ok=True)
            for form in formats:
                written.append(folder / f"{name}.{form}")
                # Neither a date nor the software's version: the file depends on the numbers alone.
                nameless = {"Date": None, "Creator": None} if form == "svg" else {"Software": None}
                found.savefig(written[-1], format=form, metadata=nameless)
    return written


def figure(kind: str, cells: Sequence[Measured]) -> Figure | None:
    """The figure of the finished cells of one task, a line a policy; None where there is nothing to draw."""
    if kind == "main":
        return _over_passes([(label, [cell]) for cell, label in labels(cells).items() if cell.passes()], close_up=False)
    if kind == "curves":
        return _over_passes([(curve.name, curve.cells) for curve in curves(cells)], close_up=True)
    if kind == "blocks":
        turned = sweeps(cells, "block_size")
        names = labels([sweep[0] for sweep in turned])
        return _over_knobs({"block_size": [(names[sweep[0]], sweep) for sweep in turned]} if turned else {}, ())
    sweep = {knob: sweep_of(cells, knob) for knob in ("threshold", "iterations")}
    return _over_knobs({knob: [("mean_field", found)] for knob, found in sweep.items() if found}, cells)


def _over_passes(lines: Lines, *, close_up: bool) -> Figure | None:
    """Accuracy over passes; with a close-up, all points on the left and the fastest of the best on the right."""
    if not lines:
        return None
    found, (whole, *near) = _panels(1, 1 + close_up, *((4.4, 4.4) if close_up else (3.6, 5.6)))
    points = [(float(c.columns["passes"].mean()), _accuracy(c)) for _, cells in lines for c in cells]
    low, high = min(passes for passes, _ in points) / 1.2, max(passes for passes, _ in points) * 1.2
    drawn = _lines(whole, lines, Measured.passes, Measured.accuracy)
    whole.set(xscale="log", xlim=(low, high), xlabel=f"{NFE}, log scale", ylabel=ACCURACY)
    # Powers of two, or closer if these are too few.
    steps = (1, 1.25, 1.5, 1.75) if high < 4 * low else (1,)
    _ticks(whole, [tick for power in range(12) for step in steps if low <= (tick := 2**power * step) <= high])
    for panel in near:
        _lines(panel, lines, Measured.passes, Measured.accuracy)
        floor = max(accuracy for _, accuracy in points) - CLOSE
        good = [passes for passes, accuracy in points if accuracy >= floor]
        right = max(passes for passes in good if passes <= FAST * min(good))
        panel.set(xlim=(min(good) * 0.93, right * 1.07), ylim=(floor, min(100.5, floor + CLOSE + 2)))
        panel.set(xlabel=NFE, ylabel=ACCURACY)
        whole.set_title("all settings", loc="left")
        panel.set_title(f"the fastest within {CLOSE} points of the best", loc="left")
    return _with_legend(found, drawn)


def _over_knobs(turned: dict[str, Lines], pool: Sequence[Measured]) -> Figure | None:
    """Accuracy and passes over the values of each knob; the baseline is looked for in the pool."""
    if not turned:
        return None
    # All knobs on one scale: what hardly matters must look like it.
    found, panels = _panels(len(turned), 2, 3.2, 4.4, sharey="col")
    drawn: dict[str, Any] = {}
    for left, right, (knob, lines) in zip(panels[::2], panels[1::2], turned.items(), strict=True):
        # A little beside each other, so that equal values do not hide one another.
        shifts = {c: 1.025 ** (at - (len(lines) - 1) / 2) for at, (_, cells) in enumerate(lines) for c in cells}
        positions = {cell: Estimate(value=value_of(cell, knob) * shift) for cell, shift in shifts.items()}
        first = lines[0][1][0]
        for panel, name, value in ((left, ACCURACY, Measured.accuracy), (right, NFE, Measured.passes)):
            drawn |= _lines(panel, lines, positions.get, value)
            panel.set(xscale="log" if knob == "block_size" else "linear", ylabel=name)
            panel.set_xlabel(with_parameters(KNOBS[knob], changes(first, knob) if pool else {}))
            _ticks(panel, sorted({value_of(cell, knob) for cell in positions}))
        right.set_ylim(bottom=0)
        if baseline := baseline_of(first, pool):
            line = left.axhline(_accuracy(baseline), color="#666666", linestyle=":", linewidth=1.4, zorder=1)
            drawn[f"{baseline.policy},\none token a pass"] = line
    return _with_legend(found, drawn)


def _panels(rows: int, columns: int, height: float, width: float, **shared: Any) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    found = Figure(figsize=(width * columns + 1.4, height * rows + 0.3), layout="constrained")
    return found, list(found.subplots(rows, columns, squeeze=False, **shared).flat)


def _lines(panel: Axes, lines: Lines, x: Callable[[Measured], Any], y: Callable[[Measured], Any]) -> dict[str, Any]:
    """Every line's points, joined, with bars for the intervals. A line looks as its policy always does, if it can."""
    drawn: dict[str, Any] = {}
    free, taken = cycle(OTHERS), set()
    for name, cells in lines:
        own = STYLES.get(cells[0].policy)
        colour, marker, dash = look = next(free) if own is None or own in taken else own
        taken.add(look)
        points = [(a, b) for cell in cells if (a := x(cell)) is not None and (b := y(cell)) is not None]
        (at, x_bars), (value, y_bars) = (_with_bars(axis) for axis in zip(*points, strict=True))
        style: dict[str, Any] = {"color": colour, "marker": marker, "markersize": SIZES.get(marker, 5.5)}
        style |= {"linestyle": dash if len(points) > 1 else "none", "ecolor": (colour, 0.4), "elinewidth": 0.8}
        # On top: the policy that the package is about.
        style |= {"zorder": 5 if cells[0].policy == "mean_field" else 3}
        drawn[name], *_ = panel.errorbar(at, value, xerr=x_bars, yerr=y_bars, **style)
    return drawn


def _with_bars(estimates: Sequence[Estimate]) -> tuple[list[float], list[list[float]]]:
    """The values, and how far each interval reaches below and above."""
    ends = [(found.value, *(found.interval or (found.value, found.value))) for found in estimates]
    below, above = (
        [max(0.0, value - low) for value, low, _ in ends],
        [max(0.0, high - value) for value, _, high in ends],
    )
    return [found.value for found in estimates], [below, above]


def _ticks(panel: Axes, ticks: Sequence[float | int]) -> None:
    panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    panel.minorticks_off()


def _accuracy(cell: Measured) -> float:
    return float(100 * cell.columns["correct"].mean())


def _with_legend(found: Figure, drawn: dict[str, Any]) -> Figure:
    """Outside the panels, where it hides nothing."""
    order = {name: at for at, name in enumerate(STYLES)}
    names = sorted(drawn, key=lambda name: order.get(name.split(" ")[0], len(order)))
    found.legend([drawn[name] for name in names], names, loc="outside right center")
    return found
