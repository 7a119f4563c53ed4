"""The command line: a list of verbs, and what becomes of errors. Torch is imported when the work begins.

Results go to stdout, everything else to stderr. Exit status: 0 done, 1 the work failed, 2 the command was wrong, 130
the user ended it with Ctrl-C.
"""

from __future__ import annotations

import os
import sys

import click
from click.shell_completion import shell_complete

from unmask import __version__
from unmask.commands import bench
from unmask.commands.evaluate import eval_, policies, report
from unmask.commands.generate import chat, generate
from unmask.commands.serve import batch, play, serve, view
from unmask.errors import Interrupted, UnmaskError
from unmask.parsing import Command

COMPLETE = "_UNMASK_COMPLETE"  # set by a shell that wants to complete a command, or to learn how


@click.group(
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=f"""A shell completes commands after this line, or the same with zsh_source or fish_source:

\b
  eval "$({COMPLETE}=bash_source unmask)"
""",
)
@click.version_option(__version__, message="%(version)s", help="Show the version and exit.")
def app() -> None:
    """Decode with masked diffusion language models (LLaDA, Dream, SDAR): many tokens per forward pass, safely."""


for _verb in (generate, chat, serve, play, view, batch, policies, eval_, report):
    app.add_command(Command(_verb, config_file=_verb is serve))
app.add_command(_bench := click.Group("bench", help="Measure speed on this machine.", no_args_is_help=True))
for _verb in (bench.rule, bench.step, bench.generate, bench.serve):
    _bench.add_command(Command(_verb))


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit."""
    # How long a thread of libgomp spins before it sleeps; read when torch is imported. On a busy machine, threads that
    # spin for longer take the cores of the threads that they wait for (docs/performance.md).
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    if instruction := os.environ.get(COMPLETE):
        sys.exit(shell_complete(app, {}, "unmask", COMPLETE, instruction))
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit status; what went wrong is one line on stderr."""
    try:
        # A flag takes a value always or never.
        end = arguments.index("--") if "--" in arguments else len(arguments)
        words = ["--json-full" if word == "--json=full" else word for word in arguments[:end]] + arguments[end:]
        with app.make_context("unmask", words) as ctx:
            app.invoke(ctx)
        if sys.stdout is not None:
            sys.stdout.flush()
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "unmask"
        return _complain(f"{error.format_message()} See `{command} --help`.", error.exit_code)
    except UnmaskError as error:
        return _complain(str(error), error.status)
    except KeyboardInterrupt:
        return _complain("interrupted", Interrupted.status)
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except (OSError, UnicodeEncodeError, MemoryError) as error:
        return _complain(str(error) or "out of memory", 1)
    return 0


def _complain(message: str, status: int) -> int:
    print(f"unmask: {' '.join(message.split())}", file=sys.stderr)
    return status
