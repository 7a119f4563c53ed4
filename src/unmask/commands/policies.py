"""`unmask policies`: what is installed."""

from __future__ import annotations

import json

from unmask import flags, screen


def policies(as_json: flags.Json = False) -> None:
    """List the installed policies with their parameters and defaults."""
    from unmask.policies.listing import installed

    rows = installed()
    if as_json:
        print("\n".join(json.dumps(row) for row in rows))
    else:
        screen.show_policies(rows)
