"""The Minerva protocol for MATH, out of lm-eval's own file: its shots, and how it finds and tidies up an answer.

The module of lm-eval cannot be imported: it insists on a version of antlr that math-verify does not work with. So it is
run without the imports of its comparison, which is ours.
"""

from __future__ import annotations

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError


def shots() -> list[dict[str, Any]]:
    """The four worked examples."""
    return definition("list_fewshot_samples")()


def definition(name: str) -> Any:
    """A function of lm-eval's module."""
    if name not in (found := _definitions()):
        raise UnmaskError(f"lm-eval's task minerva_math has no {name}, as it has in 0.4.13")
    return found[name]


@cache
def _definitions() -> dict[str, Any]:
    package = find_spec("lm_eval")
    assert package is not None
    assert package.submodule_search_locations
    path = Path(package.submodule_search_locations[0]) / "tasks" / "minerva_math" / "utils.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if not isinstance(node, ast.Try)]
    found: dict[str, Any] = {"__name__": "minerva_math"}
    exec(compile(tree, str(path), "exec"), found)
    return found
