"""lm-eval's own command, which knows our engine as the model `unmask`: `python -m unmask.lm_eval --model unmask ...`.

lm-eval asks no entry points for models, so ours must be registered in the process of its command.
"""

from __future__ import annotations

import sys
from importlib import import_module

from unmask.errors import UnmaskError


def main() -> None:
    """Run lm-eval's command line and exit."""
    try:
        import_module("unmask.evals.language_model")  # registers the model
        import_module("lm_eval.__main__").cli_evaluate()
    except ModuleNotFoundError as error:
        sys.exit(f"unmask: lm-eval needs {error.name}, which is missing: pip install 'unmask[eval]'")
    except UnmaskError as error:
        sys.stderr.write(f"unmask: {error}\n")
        sys.exit(error.status)


if __name__ == "__main__":
    main()
