"""`unmask policies`: what is installed."""

from __future__ import annotations

import json
from typing import Any

from unmask import flags, screen


def policies(as_json: bool = flags.JSON) -> None:
    """List the installed policies with their parameters and defaults."""
    from unmask.policies.listing import installed

    rows = installed()
    if as_json:
        print("\n".join(json.dumps(row) for row in rows))
    else:
        screen.show_names((row["name"], _words(row)) for row in rows)


def _words(row: dict[str, Any]) -> str:
    """The parameters of a policy, what it does, and what it needs beyond the logits of its block."""
    parameters = " ".join(f"{key}={value}" for key, value in row["parameters"].items())
    needs = f" Needs {', '.join(row['needs'])}." if row["needs"] else ""
    return f"{parameters}\n{row['about']}{needs}"
