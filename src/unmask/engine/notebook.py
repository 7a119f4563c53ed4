"""Progress of several prompts, shown in a notebook and nowhere else."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from unmask.types import StepEvent


def watched(events: Iterator[StepEvent], prompts: int) -> Iterator[StepEvent]:
    """The same events; in a notebook, with a bar under the cell meanwhile, unless there is a single prompt."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return events if prompts < 2 or getattr(shell, "kernel", None) is None else _shown(events, prompts)


def _shown(events: Iterator[StepEvent], prompts: int) -> Iterator[StepEvent]:
    from IPython.display import HTML, display

    done = 0
    bar: Any = display(HTML(""), display_id=True)
    for passes, event in enumerate(events, start=1):
        if event.finished:
            done += 1
            share = f'<progress value="{done}" max="{prompts}"></progress>'
            bar.update(HTML(f"{share} {done} of {prompts} prompts, {passes} forward passes"))
        yield event
    bar.update(HTML(""))
