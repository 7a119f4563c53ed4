"""Names at the ends of lines: each beside its last visible point, where it covers no point, line or other name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import cos, hypot, pi, sin
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Ends = Sequence[tuple[str, str, Sequence[tuple[float, float]]]]  # name, colour and points of each line

SIZE = 7.5  # of the letters, in points
LONGEST = 26  # letters; the legend has the whole name
# Places to try, in pixels at 100 dots an inch: to the right, to the left, above, below, then further and further out.
ANGLES = [turn * pi / 8 for turn in (0, 8, 2, 14, 6, 10, 4, 12, 1, 15, 7, 9, 3, 13, 5, 11)]
DISTANCES = (8.0, 15.0, 24.0, 36.0, 50.0, 66.0, 84.0, 104.0)
MARKER, LINE, STEP = 5, 1.5, 6  # half the side of a marker, half the width of a line, and how closely it is looked at


def name_ends(figure: Figure, panels: Sequence[tuple[Axes, Ends]]) -> None:
    """Write the names into the panels, whose layout must be final."""
    from matplotlib.patheffects import withStroke

    figure.draw_without_rendering()
    scale = figure.dpi / 100
    for axes, ends in panels:
        if len(ends) < 2:  # the legend says it
            continue
        axes.set_autoscale_on(False)
        box = tuple(map(float, axes.get_window_extent().extents))
        lines = [_pixels(axes, points) for _, _, points in ends]
        shown = [[at for at in line if _inside((*at, *at), box)] for line in lines]
        taken = [_around(at, MARKER * scale) for of_line in shown for at in of_line]
        taken += [_around(at, LINE * scale) for line in lines for at in _between(line, STEP * scale)]
        for (name, colour, _), of_line in zip(ends, shown, strict=True):
            if not of_line:
                continue
            end, short = of_line[-1], name if len(name) <= LONGEST else name.partition(" (")[0]
            text = axes.text(0, 0, short, fontsize=SIZE, color=colour, in_layout=False, zorder=8)
            text.set_path_effects([withStroke(linewidth=2, foreground="white")])
            size = text.get_window_extent()
            place, distance = _free(end, (float(size.width), float(size.height)), taken, box, scale)
            taken.append(place)
            x, y = axes.transData.inverted().transform(place[:2])
            text.set_position((float(x), float(y)))
            text.set_verticalalignment("bottom")
            if distance > DISTANCES[0]:
                middle = ((place[0] + place[2]) / 2, (place[1] + place[3]) / 2)
                (x0, y0), (x1, y1) = axes.transData.inverted().transform([end, middle])
                axes.plot([x0, x1], [y0, y1], color=colour, linewidth=0.5, alpha=0.6, zorder=2, label="_leader")


def _pixels(axes: Axes, points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in axes.transData.transform(list(points))]


def _between(line: list[tuple[float, float]], step: float) -> Iterator[tuple[float, float]]:
    """Places on a line, so far apart."""
    for (x0, y0), (x1, y1) in pairwise(line):
        steps = int(hypot(x1 - x0, y1 - y0) / step) + 1
        yield from ((x0 + (x1 - x0) * at / steps, y0 + (y1 - y0) * at / steps) for at in range(1, steps))


def _free(
    end: tuple[float, float], size: tuple[float, float], taken: list[Any], frame: Any, scale: float
) -> tuple[tuple[float, float, float, float], float]:
    """The first place near the end that nothing covers, and its distance; the farthest one if there is none."""
    width, height = size
    place, distance = (*end, end[0] + width, end[1] + height), 0.0
    for distance in DISTANCES:
        for angle in ANGLES:
            x, y = end[0] + distance * scale * cos(angle), end[1] + distance * scale * sin(angle)
            left = x if cos(angle) > 0.3 else x - width if cos(angle) < -0.3 else x - width / 2
            place = (left, y - height / 2, left + width, y + height / 2)
            if _inside(place, frame) and not any(_overlap(place, other) for other in taken):
                return place, distance
    return place, distance


def _around(at: tuple[float, float], reach: float) -> tuple[float, float, float, float]:
    return at[0] - reach, at[1] - reach, at[0] + reach, at[1] + reach


def _inside(box: Any, frame: Any) -> bool:
    return frame[0] <= box[0] and frame[1] <= box[1] and box[2] <= frame[2] and box[3] <= frame[3]


def _overlap(one: Any, other: Any) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
