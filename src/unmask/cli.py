"""The command line: a table of verbs, and what becomes of errors. Torch is imported when the work begins.

Results go to stdout, everything else to stderr. Exit status: 0 done, 1 the work failed, 2 the command was wrong, 130
the user ended it with Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from unmask.commands.bench import bench_generate, bench_rule, bench_serve, bench_step
from unmask.commands.evaluate import evaluate, report
from unmask.commands.generate import chat, generate
from unmask.commands.pages import play, view
from unmask.commands.policies import policies
from unmask.commands.serve import batch, serve
from unmask.complaints import complaint_of, in_flags
from unmask.errors import Interrupted, OutOfMemory, UnmaskError, WorkFailed
from unmask.help_pages import Command, Group

INTERRUPTED = 130  # as shells have it: 128 and the number of the signal
_PLAIN: dict[str, Any] = {
    "cls": Group,
    "no_args_is_help": True,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
}
# The base class of errors about the command itself; newer releases of typer carry a click of their own.
_UsageError: Any = next(cls for cls in typer.BadParameter.__mro__ if cls.__name__ == "ClickException")
_VERBS = {
    "generate": generate,
    "chat": chat,
    "serve": serve,
    "play": play,
    "view": view,
    "batch": batch,
    "policies": policies,
    "eval": evaluate,
    "report": report,
}
_BENCH = {"rule": bench_rule, "step": bench_step, "generate": bench_generate, "serve": bench_serve}

app = typer.Typer(name="unmask", context_settings={"help_option_names": ["-h", "--help"]}, **_PLAIN)
bench = typer.Typer(help="Measure speed on this machine.", **_PLAIN)
app.add_typer(bench, name="bench")
for _group, _verbs in ((app, _VERBS), (bench, _BENCH)):
    for _name, _command in _verbs.items():
        _group.command(_name, cls=Command)(_command)


def _show_version(wanted: bool) -> bool:
    if wanted:
        from unmask import __version__

        print(__version__)
        raise typer.Exit
    return wanted


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Decode with masked diffusion language models (LLaDA, Dream): many tokens per forward pass, safely."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit."""
    # How long a thread of libgomp spins before it sleeps; read when torch is imported. On a busy machine, threads that
    # spin for longer take the cores of the threads that they wait for (docs/performance.md).
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit status; what went wrong is one line on stderr."""
    try:
        # Typer's flags take a value always or never.
        end = arguments.index("--") if "--" in arguments else len(arguments)
        words = ["--json-full" if word == "--json=full" else word for word in arguments[:end]] + arguments[end:]
        status = app(words, prog_name="unmask", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
    except _UsageError as error:
        return _complain(complaint_of(error), 2)
    except Interrupted as error:
        return _complain(str(error), INTERRUPTED)
    except UnmaskError as error:
        return _complain(in_flags(error, _flags_of(arguments)), 1 if isinstance(error, WorkFailed | OutOfMemory) else 2)
    except (KeyboardInterrupt, typer.Abort):
        return _complain("interrupted", INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except (OSError, UnicodeEncodeError, MemoryError) as error:
        return _complain(str(error) or "out of memory", 1)
    # Newer releases of typer turn an interrupt into this status.
    return _complain("interrupted", INTERRUPTED) if status == INTERRUPTED else status or 0


def _flags_of(arguments: list[str]) -> set[str]:
    """The flags of the command that was typed."""
    command: Any = typer.main.get_command(app)
    for word in arguments:
        if word not in getattr(command, "commands", ()):
            break
        command = command.commands[word]
    flags = {name for each in command.params for name in each.opts}
    # Of `eval`, most are keys of a recipe too: there, an option is a flag if it was typed.
    return flags & {word.partition("=")[0] for word in arguments} if command.name == "eval" else flags


def _complain(message: str, status: int) -> int:
    whole = message if message.startswith("Usage:") else f"unmask: {' '.join(message.split())}"
    print(whole, file=sys.stderr)
    return status
