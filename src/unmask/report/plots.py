"""Figures of the studies. A policy has a colour, a marker and its name at the end of its line, beside a legend.

Colours are Okabe and Ito's and Tol's, which colour-blind readers can tell apart.

The same numbers give the same file, byte for byte: no dates, no random ids, the fonts that matplotlib carries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from math import cos, pi, sin
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.errors import UnmaskError
from unmask.report import compare
from unmask.report.compare import Cells, baseline_of, changes, groups, labels, value_of, with_parameters
from unmask.report.measured import Estimate, Measured
from unmask.report.studies import STUDIES, curves, file_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FILES = ("png", "svg", "pdf")
FIGURES = dict.fromkeys(("main", "curves"), "accuracy against forward passes")  # kind of study -> title
FIGURES |= {"blocks": "block size", "sensitivity": "sensitivity of mean-field"}
KNOBS = {"threshold": "threshold τ", "iterations": "updates R", "block_size": "block size (tokens)"}
AXES = KNOBS | {"passes": "forward passes per item (NFE)", "accuracy": "accuracy (%)"}
# Neither a date nor the software's version: a file depends on the numbers alone.
NAMELESS: dict[str, dict[str, Any]] = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}
NAMELESS["pdf"] = {"CreationDate": None, "Creator": None, "Producer": None}
CLOSE, FAST = 12, 2.2  # the close-up: points of accuracy below the best, and passes over the fewest

# Policy -> colour, marker, line: solid for policies that choose how many, dashed for a fixed number a pass.
CHOOSING = "mean_field joint threshold factor eb klass local_leap dawn cumulative dapd wino".split()
FIXED = "fixed entropy margin random".split()
COLOURS = ("#D55E00", "#B00020", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#332288")
COLOURS += ("#117733", "#999933", "#AA4499", "#B8860B", "#44AA99", "#666666")
LOOKS = {
    policy: (colour, marker, "--" if policy in FIXED else "-")
    for policy, colour, marker in zip(CHOOSING + FIXED, COLOURS, "oHsD^vPX8<>*phd", strict=True)
}
# Of policies that are not known here, and second lines of those that are; their markers are numbers.
OTHERS = ("#882255", "#8B4513", "#6A3D9A", "#2F4F4F", "#D81B60", "#5D6D00")
SIZES = {"*": 9, "P": 7, "X": 7, "$": 8}  # of markers that look small
ENTRY = 0.2  # inches of a line of the legend

STYLE: dict[Any, Any] = {"font.size": 9, "grid.color": "#dddddd", "grid.linewidth": 0.6, "savefig.dpi": 160}
STYLE |= {"lines.linewidth": 1.3, "lines.markeredgewidth": 0.4}
STYLE |= {"axes.grid": True, "axes.axisbelow": True, "svg.hashsalt": "unmask", "pdf.fonttype": 42}
STYLE |= dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False)

LONGEST = 26  # letters of a name at the end of a line; the legend has the whole name
# Places for a name, in pixels at 100 dots an inch and in turns: beside the point, above, below, then further out.
TURNS = (0, 8, 2, 14, 6, 10, 4, 12, 1, 15, 7, 9, 3, 13, 5, 11)
PLACES = [(far, turn * pi / 8) for far in (8, 15, 24, 36, 50, 66, 84, 104) for turn in TURNS]
MARKER, LINE = 5, 1.5  # half the side of a marker, half the width of a line

Lines = Sequence[tuple[str, Cells]]  # the label and the cells of each line


@dataclass(frozen=True, kw_only=True)
class Panel:
    """What one panel of a figure shows: one value over another, with a line for each policy."""

    lines: Lines
    x: str = "passes"  # x and y are names of AXES
    y: str = "accuracy"
    log: bool = False
    title: str = ""
    setting: dict[str, Any] = field(default_factory=dict)  # named beside the x axis
    limits: dict[str, Any] = field(default_factory=dict)
    baseline: Measured | None = None  # its accuracy is drawn as a level


def check_installed() -> None:
    """Raise an error that says how to install matplotlib, if it is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UnmaskError("a figure needs matplotlib, which is missing: pip install 'unmask[plot]'") from error


def draw(kind: str, cells: Cells, folder: Path, formats: Sequence[str]) -> list[Path]:
    """The figures of one kind of study, one for each model and task, as files in the folder."""
    import matplotlib

    written: list[Path] = []
    for same in groups(compare.unique(cells, STUDIES[kind].key), compare.questions):
        name = file_name(f"{kind}-{same[0].model}-{same[0].cell.task}", [path.stem for path in written])
        with matplotlib.rc_context(STYLE):
            if found := figure(kind, [cell for cell in same if cell.complete]):
                folder.mkdir(parents=True, exist_ok=True)
                for form in formats:
                    written.append(folder / f"{name}.{form}")
                    found.savefig(written[-1], format=form, metadata=NAMELESS[form])
    return written


def figure(kind: str, cells: Cells) -> Figure | None:
    """The figure of the finished cells of one task; None where there is nothing to draw."""
    from matplotlib.figure import Figure

    grid = _grid(kind, cells)
    if not grid:
        return None
    height = max(3.4 * len(grid) + 0.8, ENTRY * len({name for panel in grid[0] for name, _ in panel.lines}) + 0.8)
    found = Figure(figsize=(max(7.0, 4.4 * len(grid[0]) + 1.4), height), dpi=100, layout="constrained")
    # All knobs share one scale, so that a knob that hardly matters looks like it.
    axes = found.subplots(len(grid), len(grid[0]), squeeze=False, sharey="col")
    panels = list(zip(axes.flat, chain.from_iterable(grid), strict=True))
    drawn = [_draw(one, panel) for one, panel in panels]
    legend = {name: line for lines in drawn for name, line in lines.items()}
    found.legend(legend.values(), legend.keys(), loc="outside right center")
    about = f"{FIGURES[kind]} ({cells[0].done:,} item{'s' * (cells[0].done > 1)}, 95 % intervals)"
    found.suptitle(f"{cells[0].model}, {cells[0].cell.task}: {about}", x=0.01, ha="left", fontsize="large")
    found.draw_without_rendering()  # names have their places in the final layout
    for (one, panel), lines in zip(panels, drawn, strict=True):
        if len(panel.lines) > 1:  # the legend names a lone line
            _name_ends(one, lines)
    return found


def _grid(kind: str, cells: Cells) -> list[list[Panel]]:
    if kind == "main":
        lines = [(label, [cell]) for cell, label in labels(cells).items() if cell.passes()]
        return [[Panel(lines=lines, log=True)]] if lines else []
    if kind == "curves":
        lines = [(curve.name, curve.cells) for curve in curves(cells)]
        return [[Panel(lines=lines, log=True, title="all settings"), _close_up(lines)]] if lines else []
    if kind == "blocks":
        turned = compare.sweeps(cells, "block_size")
        names = labels([sweep[0] for sweep in turned])
        panel = Panel(lines=[(names[sweep[0]], sweep) for sweep in turned], x="block_size", log=True)
        return [[panel, replace(panel, y="passes")]] if turned else []
    found = []
    for knob in ("threshold", "iterations"):
        if sweep := compare.sweep_of(cells, knob):
            panel = Panel(lines=[("mean_field", sweep)], x=knob, setting=changes(sweep[0], knob))
            found.append([replace(panel, baseline=baseline_of(sweep[0], cells)), replace(panel, y="passes")])
    return found


def _close_up(lines: Lines) -> Panel:
    """A panel of the fastest cells among the most accurate."""
    points = [[_value(cell, name).value for name in ("passes", "accuracy")] for _, cells in lines for cell in cells]
    floor = max(accuracy for _, accuracy in points) - CLOSE
    good = [passes for passes, accuracy in points if accuracy >= floor]
    right = max(passes for passes in good if passes <= FAST * min(good))
    limits = {"xlim": (min(good) * 0.93, right * 1.07), "ylim": (floor, min(100.5, floor + CLOSE + 2))}
    return Panel(lines=lines, title=f"the fastest within {CLOSE} points of the best", limits=limits)


def _value(cell: Measured, name: str) -> Estimate:
    """A value of a finished cell, by the name of its axis."""
    found = Estimate(value=float(value_of(cell, name))) if name in KNOBS else getattr(cell, name)()
    return found or Estimate(value=0.0)


def _draw(axes: Axes, panel: Panel) -> dict[str, Any]:
    """Every line's points, joined, with bars for the intervals. A policy's first line has the policy's own look."""
    drawn, taken = dict[str, Any](), set()
    numbered = ((OTHERS[at % len(OTHERS)], f"${at + 1}$", ":") for at in count())
    for at, (name, cells) in enumerate(panel.lines):
        look = LOOKS.get(cells[0].policy)
        colour, marker, dash = look = next(numbered) if look is None or look in taken else look
        taken.add(look)
        x, y = ([_value(cell, axis) for cell in cells] for axis in (panel.x, panel.y))
        # Lines over a knob stand a little beside each other, so that equal values do not hide one another.
        shift = 1.025 ** (at - (len(panel.lines) - 1) / 2) if panel.x in KNOBS else 1.0
        style: dict[str, Any] = {"color": colour, "marker": marker, "markersize": SIZES.get(marker[0], 5.5)}
        style["markeredgecolor"] = colour if marker[0] == "$" else "white"  # a white edge would hide a number
        style |= {"linestyle": dash if len(cells) > 1 else "none", "ecolor": (colour, 0.4), "elinewidth": 0.8}
        # On top: the policy that the package is about.
        style |= {"zorder": 5 if cells[0].policy == "mean_field" else 3, "xerr": _bars(x), "yerr": _bars(y)}
        drawn[name], *_ = axes.errorbar([one.value * shift for one in x], [one.value for one in y], **style)
    if panel.baseline:
        level = _value(panel.baseline, "accuracy").value
        line = axes.axhline(level, color="#666666", linestyle=":", linewidth=1.4, zorder=1)
        drawn[f"{panel.baseline.policy},\none token a pass"] = line
    _scale(axes, panel)
    return drawn


def _bars(found: Sequence[Estimate]) -> list[list[float]]:
    """How far each interval reaches below and above its value."""
    ends = [(one.value, *(one.interval or (one.value, one.value))) for one in found]
    return [[max(0.0, value - low) for value, low, _ in ends], [max(0.0, high - value) for value, _, high in ends]]


def _scale(axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import LogLocator

    places = {_value(cell, panel.x).value for _, cells in panel.lines for cell in cells}
    label = with_parameters(AXES[panel.x], panel.setting) + ", log scale" * panel.log
    axes.set(xscale="log" if panel.log else "linear", xlabel=label, ylabel=AXES[panel.y], **panel.limits)
    axes.set_title(panel.title, loc="left")
    if panel.y == "passes":
        axes.set_ylim(bottom=0)
    if panel.x in KNOBS:
        axes.set_xticks(sorted(places))
    elif panel.log:
        # Powers of two, or closer if these are too few.
        subs = (1, 1.25, 1.5, 1.75) if max(places) < 3 * min(places) else (1,)
        axes.xaxis.set_major_locator(LogLocator(base=2, subs=subs))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()


def _name_ends(axes: Any, lines: dict[str, Any]) -> None:
    """Write the name of each line beside its last visible point, where it covers no point, line or other name."""
    from matplotlib.patheffects import withStroke
    from matplotlib.transforms import Bbox

    axes.set_autoscale_on(False)
    frame, to_data = axes.get_window_extent(), axes.transData.inverted()
    paths = [axes.transData.transform_path(line.get_path()) for line in lines.values()]
    shown = [[at for at in path.vertices if frame.contains(*at)] for path in paths]
    points, taken = list(chain.from_iterable(shown)), []

    def is_free(box: Any) -> Any:
        inside = frame.contains(*box.min) and frame.contains(*box.max)
        covers = box.count_overlaps(taken) or box.padded(MARKER).count_contains(points)
        return inside and not covers and not any(path.intersects_bbox(box.padded(LINE), False) for path in paths)

    for (name, line), visible in zip(lines.items(), shown, strict=True):
        if not visible:
            continue
        short = name if len(name) <= LONGEST else name.partition(" (")[0]
        style = {"color": line.get_color(), "path_effects": [withStroke(linewidth=2, foreground="white")]}
        text = axes.text(0, 0, short, fontsize=7.5, va="bottom", zorder=8, in_layout=False, **style)
        (x, y), (width, height) = visible[-1], text.get_window_extent().size
        for far, angle in PLACES:
            left = x + far * cos(angle) - width * (0 if cos(angle) > 0.3 else 1 if cos(angle) < -0.3 else 0.5)
            box = Bbox.from_bounds(left, y + far * sin(angle) - height / 2, width, height)
            if is_free(box):
                break
        taken.append(box)
        text.set_position(to_data.transform(box.min))
        if far > PLACES[0][0]:
            ends = to_data.transform([(x, y), (left + width / 2, box.ymin + height / 2)])
            axes.plot(*ends.T, color=line.get_color(), linewidth=0.5, alpha=0.6, zorder=2, label="_leader")
