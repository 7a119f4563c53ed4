"""Random damage to the folder of a finished run: a re-run ends with the results of an undamaged one, or in one line.

Damage that leaves the digest of a cell in place is always found. The digest itself is damaged alone: without one, a
cell counts as unfinished, and its whole lines are taken as they are. See fuzzing.py.
"""

from __future__ import annotations

import shutil
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fuzzing import check_one_line, fuzz, tell
from hypothesis import given
from hypothesis import strategies as st

from unmask.errors import UnmaskError
from unmask.evals.recipe import parse
from unmask.evals.run import run
from unmask.evals.store import cells_of

SMALL = {"tasks": ["countdown-3"], "limit": 3, "batch_size": 3, "settings": {"max_tokens": 8}}
RECIPE = parse({"model": "toy", "policy": "threshold", **SMALL})
Damage = tuple[str, int, int]  # its kind, and where
KINDS = ("cut", "flip", "insert", "zero", "empty", "remove", "drop line", "swap lines", "repeat line", "other line")
places = st.integers(0, 2**20)
damages = st.tuples(st.sampled_from(KINDS), places, places)
DONE = "done.json"


def damaged(content: bytes, damage: Damage) -> bytes:
    kind, first, second = damage
    at, lines = first % max(1, len(content)), content.splitlines(keepends=True) or [b""]
    one, other = first % len(lines), second % len(lines)
    if kind.endswith(("line", "lines")):
        if kind == "drop line":
            del lines[one]
        elif kind == "repeat line":
            lines.insert(one, lines[one])
        elif kind == "other line":
            lines[one] = b"null\n"
        else:
            lines[one], lines[other] = lines[other], lines[one]
        return b"".join(lines)
    length = 1 + second % 16
    changed = {
        "cut": content[:at],
        "flip": content[:at] + bytes([content[at] ^ (1 << second % 8)] if content else []) + content[at + 1 :],
        "insert": content[:at] + bytes((second * n) % 256 for n in range(length)) + content[at:],
        "zero": content[:at] + bytes(min(length, len(content) - at)) + content[at + length :],
        "empty": b"",
    }
    return changed[kind]


def spoil(path: Path, damage: Damage) -> None:
    if not path.exists():
        return
    if damage[0] == "remove":
        path.unlink()
    else:
        path.write_bytes(damaged(path.read_bytes(), damage))


def results(folder: Path) -> list[tuple[Any, ...]]:
    """What was measured, without the times."""
    found = [(cell.cell, cell.generations, cell.scores) for cell in cells_of(folder)]
    return [
        (cell, {number: (row.prompt, row.text, row.passes) for number, row in rows.items()}, scores)
        for cell, rows, scores in found
    ]


@pytest.mark.slow
def test_a_run_whose_files_were_damaged_ends_as_one_whose_were_not_or_in_one_line(tmp_path: Path) -> None:
    whole, folder, ends = tmp_path / "whole" / "run", tmp_path / "damaged" / "run", Counter[str]()
    run(RECIPE, out=whole)
    expected = results(whole)
    files = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file())
    digests = [path for path in files if path.name == DONE]
    others = st.lists(st.tuples(st.sampled_from([path for path in files if path.name != DONE]), damages), min_size=1)
    assert len(files) == 6

    @fuzz(40)
    @given(others | st.tuples(st.tuples(st.sampled_from(digests), damages)))
    def one(done: Any) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole, folder)
        for path, damage in done:
            spoil(folder / path, damage)
        said: list[str] = []
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                finished = run(RECIPE, out=folder, say=said.append)
        except UnmaskError as error:
            check_one_line(error)
            ends["refused"] += 1
            return
        assert all("\n" not in line for line in said)
        assert results(folder) == expected
        ends["measured again" if finished.new_items else "went on"] += 1

    one()
    assert set(ends) == {"refused", "measured again", "went on"}
    tell(ends)
