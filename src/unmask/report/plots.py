"""Pictures of the studies. Colours are Okabe and Ito's, told apart by all kinds of eyes; markers differ as well.

The same numbers give the same file, byte for byte: no dates, no random ids, the fonts that matplotlib carries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from unmask.errors import UnmaskError
from unmask.report.curves import curve_name, curves
from unmask.report.measured import Estimate, Measured, baseline_of, value_of
from unmask.report.published import changes, with_traits
from unmask.report.results import distinct, groups, labels, questions
from unmask.report.sweeps import merged, sweep_of, sweeps, unique, without_copies

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FILES = ("png", "svg")
TITLES = {
    "main": "accuracy against forward passes",
    "curves": "accuracy against forward passes",
    "blocks": "block size",
    "sensitivity": "sensitivity of mean-field",
}
AXES = {"threshold": "threshold τ", "iterations": "updates R", "block_size": "block size (tokens), log scale"}
NARROW = 4  # a log axis that spans less than this factor has too few powers of two
CLOSE, FAST = 12, 2.2  # the close-up: points of accuracy below the best, and passes over the fewest

# name: colour, marker, line. Colours come back with another marker and another line.
STYLES = {
    "mean_field": ("#D55E00", "o", "-"),
    "threshold": ("#0072B2", "s", "-"),
    "factor": ("#009E73", "D", "-"),
    "eb": ("#CC79A7", "^", "-"),
    "klass": ("#E69F00", "v", "-"),
    "local_leap": ("#56B4E9", "P", "-"),
    "dawn": ("#000000", "X", "-"),
    "dapd": ("#009E73", "<", "--"),
    "wino": ("#CC79A7", ">", "--"),
    "fixed": ("#666666", "*", "--"),
    "entropy": ("#0072B2", "p", "--"),
    "margin": ("#E69F00", "h", "--"),
    "random": ("#56B4E9", "d", "--"),
}
# A policy that is not known here, or a second line of one that is: colours and markers that nothing above has.
# The markers are stars: (points, 1, degrees by which it is turned).
STARS = {"#882255": (4, 1, 0), "#332288": (6, 1, 0), "#999933": (4, 1, 45), "#661100": (8, 1, 0)}
OTHERS = [(colour, star, dash) for dash in (":", "-.") for colour, star in STARS.items()]
Look = tuple[str, Any, str]  # colour, marker, line

LOOK: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "svg.hashsalt": "unmask",
    "svg.fonttype": "path",
    "figure.dpi": 100,
    "savefig.dpi": 160,
}


def check_installed() -> None:
    """Say in one line how to get what pictures need."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UnmaskError("figures need matplotlib: pip install 'unmask[plot]'") from error


def draw(kind: str, cells: Sequence[Measured], folder: Path, formats: Sequence[str]) -> list[Path]:
    """The pictures of one kind of study, one for each model and task, as files in the folder."""
    import matplotlib

    written: list[Path] = []
    chosen = {"curves": merged, "main": without_copies}.get(kind, unique)
    for same in groups(chosen(cells), questions):
        with matplotlib.rc_context(LOOK):
            figure = FIGURES[kind]([cell for cell in same if cell.complete])
            if figure is None:
                continue
            first = same[0]
            title = f"{first.model}, {first.cell.task}: {TITLES[kind]} ({first.done:,} items, 95 % intervals)"
            figure.suptitle(title, x=0.01, ha="left", fontsize="large")
            name = distinct(f"{kind}-{first.model}-{first.cell.task}", [path.stem for path in written])
            folder.mkdir(parents=True, exist_ok=True)
            for form in formats:
                path = folder / f"{name}.{form}"
                # Neither a date nor the software's version: the file depends on the numbers alone.
                nameless = {"Date": None, "Creator": None} if form == "svg" else {"Software": None}
                figure.savefig(path, format=form, metadata=nameless)
                written.append(path)
    return written


def curves_figure(cells: Sequence[Measured]) -> Figure | None:
    """Accuracy over passes, a line a policy: all points on the left, the fastest of the best on the right."""
    lines = curves(cells)
    if not lines:
        return None
    figure, (whole, near) = _figure(1, 2, height=4.4)
    floor = max(_accuracy(cell) for cell in cells) - CLOSE
    drawn: dict[str, Any] = {}
    for look, curve in zip(_looks(lines), lines, strict=True):
        # What is drawn later lies on top: the policy that the package is about.
        front = 5 if curve[0].policy == "mean_field" else 3
        for panel in (whole, near):
            drawn[curve_name(curve)] = _line(panel, curve, Measured.passes, Measured.accuracy, look, front)
    _log_passes(whole, cells)
    good = [float(cell.columns["passes"].mean()) for cell in cells if _accuracy(cell) >= floor]
    near.set_xlim(min(good) * 0.93, max(passes for passes in good if passes <= FAST * min(good)) * 1.07)
    near.set_ylim(floor, min(100.5, floor + CLOSE + 2))
    whole.set_title("all settings", loc="left")
    near.set_title(f"the fastest within {CLOSE} points of the best", loc="left")
    for panel, scale in ((whole, ", log scale"), (near, "")):
        panel.set_ylabel("accuracy (%)")
        panel.set_xlabel(f"forward passes per item (NFE){scale}")
    _legend(figure, drawn)
    return figure


def main_figure(cells: Sequence[Measured]) -> Figure | None:
    """Accuracy over passes, a point a row."""
    done = [cell for cell in cells if cell.passes() is not None]
    if not done:
        return None
    figure, (panel,) = _figure(1, 1, height=3.6, width=5.6)
    names = labels(done)
    rows = [[cell] for cell in done]
    drawn: dict[str, Any] = {}
    for name, row, look in zip(names, rows, _looks(rows), strict=True):
        drawn[name] = _line(panel, row, Measured.passes, Measured.accuracy, look, 5 if name == "mean_field" else 3)
        drawn[name].set_linestyle("none")
    _log_passes(panel, done)
    panel.set_ylabel("accuracy (%)")
    panel.set_xlabel("forward passes per item (NFE), log scale")
    _legend(figure, drawn)
    return figure


def blocks_figure(cells: Sequence[Measured]) -> Figure | None:
    """Accuracy and passes over block size, a line a policy."""
    lines = sweeps(cells, "block_size")
    if not lines:
        return None
    figure, panels = _figure(1, 2)
    drawn: dict[str, Any] = {}
    names = labels([sweep[0] for sweep in lines])
    for number, (sweep, name, look) in enumerate(zip(lines, names, _looks(lines), strict=True)):
        # A little beside each other, so that equal values do not hide one another.
        shift = 1.025 ** (number - (len(lines) - 1) / 2)
        drawn[name] = _two_lines(panels, sweep, "block_size", look, shift=shift)
    for panel in panels:
        panel.set_xscale("log")
    _knob_ticks(panels, "block_size", [cell for sweep in lines for cell in sweep])
    _legend(figure, drawn)
    return figure


def sensitivity_figure(cells: Sequence[Measured]) -> Figure | None:
    """Accuracy and passes of mean-field: over its threshold above, over its number of updates below."""
    turned = [(knob, sweep) for knob in ("threshold", "iterations") if (sweep := sweep_of(cells, knob))]
    if not turned:
        return None
    # Both knobs on one scale: what hardly matters must look like it.
    figure, panels = _figure(len(turned), 2, sharey="col")
    drawn: dict[str, Any] = {}
    for row, (knob, sweep) in enumerate(turned):
        pair = panels[2 * row : 2 * row + 2]
        drawn["mean_field"] = _two_lines(pair, sweep, knob, STYLES["mean_field"])
        baseline = baseline_of(sweep[0], cells)
        if baseline is not None:
            line = pair[0].axhline(_accuracy(baseline), color="#666666", linestyle=":", linewidth=1.4, zorder=1)
            drawn[f"{baseline.policy},\none token a pass"] = line
        _knob_ticks(pair, knob, sweep)
        for panel in pair:
            panel.set_xlabel(with_traits(AXES[knob], changes(sweep[0], knob)))
    _legend(figure, drawn)
    return figure


def _two_lines(panels: Sequence[Axes], sweep: Sequence[Measured], knob: str, look: Look, *, shift: float = 1.0) -> Any:
    def place(cell: Measured) -> Estimate:
        return Estimate(value=value_of(cell, knob) * shift)

    for panel, value in zip(panels, (Measured.passes, Measured.accuracy)[::-1], strict=True):
        line = _line(panel, sweep, place, value, look, 3)
    return line


def _knob_ticks(panels: Sequence[Axes], knob: str, cells: Sequence[Measured]) -> None:
    ticks = sorted({value_of(cell, knob) for cell in cells})
    for panel, what in zip(panels, ("accuracy (%)", "forward passes per item (NFE)"), strict=True):
        panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        panel.minorticks_off()
        panel.set_xlabel(AXES[knob])
        panel.set_ylabel(what)
    panels[1].set_ylim(bottom=0)


def _line(
    panel: Axes,
    cells: Sequence[Measured],
    x: Callable[[Measured], Estimate | None],
    y: Callable[[Measured], Estimate | None],
    look: Look,
    front: int,
) -> Any:
    """One policy's points, joined, with bars for the intervals."""
    colour, marker, dash = look
    points = [(a, b) for cell in cells if (a := x(cell)) is not None and (b := y(cell)) is not None]
    (line,) = panel.plot(
        [a.value for a, _ in points],
        [b.value for _, b in points],
        color=colour,
        marker=marker,
        linestyle=dash,
        linewidth=1.3,
        markersize={"*": 9, "P": 7, "X": 7}.get(marker, 5.5 if isinstance(marker, str) else 9),
        markeredgecolor="white",
        markeredgewidth=0.4,
        zorder=front,
    )
    bars: dict[str, Any] = {"fmt": "none", "ecolor": colour, "elinewidth": 0.8, "alpha": 0.4, "zorder": front - 0.5}
    panel.errorbar(
        [a.value for a, _ in points],
        [b.value for _, b in points],
        xerr=_arms([a for a, _ in points]),
        yerr=_arms([b for _, b in points]),
        **bars,
    )
    return line


def _looks(lines: Sequence[Sequence[Measured]]) -> list[Look]:
    """How each line is drawn: as its policy always is, unless that look is taken or there is none."""
    found: list[Look] = []
    free = cycle(OTHERS)
    for line in lines:
        own = STYLES.get(line[0].policy)
        found.append(next(free) if own is None or own in found else own)
    return found


def _arms(estimates: Sequence[Estimate]) -> list[list[float]]:
    """How far the interval reaches below and above."""
    intervals = [found.interval or (found.value, found.value) for found in estimates]
    below = [max(0.0, found.value - low) for found, (low, _) in zip(estimates, intervals, strict=True)]
    above = [max(0.0, high - found.value) for found, (_, high) in zip(estimates, intervals, strict=True)]
    return [below, above]


def _figure(
    rows: int,
    columns: int,
    *,
    height: float = 3.2,
    width: float = 4.4,
    sharey: Literal["none", "col"] = "none",
) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns + 1.4, height * rows + 0.3), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharey=sharey)
    return figure, [panel for row in axes for panel in row]


def _log_passes(panel: Axes, cells: Sequence[Measured]) -> None:
    """Plain figures from just below the fewest passes to just above the most: powers of two, or closer if need be."""
    means = [float(cell.columns["passes"].mean()) for cell in cells]
    low, high = min(means) / 1.2, max(means) * 1.2
    panel.set_xscale("log")
    panel.set_xlim(low, high)
    ticks = [float(2**power) for power in range(12)]
    if high < NARROW * low:
        from matplotlib.ticker import MaxNLocator

        ticks = [float(tick) for tick in MaxNLocator(5).tick_values(low, high)]
    ticks = [tick for tick in ticks if low <= tick <= high]
    panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    panel.minorticks_off()


def _accuracy(cell: Measured) -> float:
    return float(100 * cell.correct.mean())


def _legend(figure: Figure, drawn: dict[str, Any]) -> None:
    """Outside the panels, where it hides nothing."""
    order = {name: at for at, name in enumerate(STYLES)}
    names = sorted(drawn, key=lambda name: order.get(name.split(" ")[0], len(order)))
    figure.legend([drawn[name] for name in names], names, loc="outside right center")


FIGURES: dict[str, Callable[[Sequence[Measured]], Figure | None]] = {
    "main": main_figure,
    "curves": curves_figure,
    "blocks": blocks_figure,
    "sensitivity": sensitivity_figure,
}
