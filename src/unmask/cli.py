"""The command line: a list of verbs, functions whose parameters become flags, and what becomes of errors.

A parameter is a flag if `option` declares it: name, type, default and help text stand there and nowhere else. A
parameter whose type is a dataclass stands for the flags that the fields of that class declare. They have a heading of
their own, the name of the parameter; an instance as its default gives the defaults of these flags.

Torch is imported when the work begins. Results go to stdout, everything else to stderr. Exit status: 0 done, 1 the work
failed, 2 the command was wrong, 130 the user ended it with Ctrl-C.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from types import FunctionType
from typing import Any

import click
from click.shell_completion import shell_complete

from unmask import __version__
from unmask.commands import bench
from unmask.commands.evaluate import eval_, policies, report
from unmask.commands.generate import chat, generate
from unmask.commands.serve import batch, play, serve, view
from unmask.errors import KEYWORD, Interrupted, UnknownName, UnmaskError, WrongOption, check_known
from unmask.options import checked, hints_of, kind_of, read_mapping

COMPLETE = "_UNMASK_COMPLETE"  # set by a shell that wants to complete a command, or to learn how
_FLAG_COLUMN = 24  # letters of a flag beside its text; a longer one has its own line
_WANTED = {bool: "true or false", int: "a whole number", float: "a number", str: "a text (in quotes)", Path: "a path"}
_METAVARS = {int: "N", float: "X", str: "NAME", Path: "FILE"}


class Command(click.Command):
    """A command named after its function; with `config_file`, a YAML file may hold its flags."""

    def __init__(self, function: FunctionType, *, config_file: bool = False) -> None:
        self.function = function
        self.kinds: dict[str, Any] = {}  # dataclasses by parameter
        self.sections: dict[str, dict[str, click.Parameter]] = {"options": {}}  # flags by heading
        for each in inspect.signature(function, eval_str=True).parameters.values():
            kind, default = each.annotation, each.default
            if isinstance(default, Field):
                self.sections["options"][each.name] = _flag(each.name, default, kind, default.default)
            else:
                taken = {name for section in self.sections.values() for name in section}
                flags = _flags_of(kind() if default is each.empty else default)
                self.kinds[each.name] = kind
                self.sections[each.name] = {name: flag for name, flag in flags.items() if name not in taken}
        if config_file:
            about = "YAML file with flags of this command as keys (max-tokens: 64); flags that are typed win."
            how: dict[str, Any] = {"is_eager": True, "expose_value": False, "callback": _read_config}
            self.sections["options"]["config"] = click.Option(["--config"], type=_Value(Path), help=about, **how)
        params = [flag for section in self.sections.values() for flag in section.values()]
        about = inspect.getdoc(function) or ""
        super().__init__(_word(function.__name__), params=params, help=about, short_help=about.partition("\n")[0])

    def invoke(self, ctx: click.Context) -> None:
        """Call the function. An option that the library refuses is named as it is typed."""
        values = ctx.params
        try:
            made = {
                parameter: kind(**{name: values.pop(name) for name in self.sections[parameter]})
                for parameter, kind in self.kinds.items()
            }
            self.function(**made, **values)
        except UnmaskError as error:
            error.args = (_in_flags(error, {word for flag in self.params for word in flag.opts}),)
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, flags in self.sections.items():
            shown = [*flags.values(), self.get_help_option(ctx)] if heading == "options" else flags.values()
            records = [flag.get_help_record(ctx) for flag in shown if isinstance(flag, click.Option)]
            with formatter.section(heading.capitalize()):
                formatter.write_dl(filter(None, records), col_max=_FLAG_COLUMN)


def _in_flags(error: UnmaskError, flags: set[str]) -> str:
    """An error of the library, in the words of a command with these flags."""
    message = str(error)
    if isinstance(error, WrongOption):
        way = "--set " if "--set" in flags else ""  # an option without a flag is a parameter of the policy
        flag = f"--{_word(error.name)}"
        message = f"{flag if flag in flags else way + error.name} {error.problem}"

    def spelled(found: re.Match[str]) -> str:
        flag = f"--{_word(found[1])}"
        return f"{flag} {found[2].strip(chr(39))}" if flag in flags else found[0]

    return KEYWORD.sub(spelled, message)


def _flags_of(given: Any) -> dict[str, click.Parameter]:
    """The flags of the fields of a dataclass by name, own fields before inherited ones; defaults are as `given`."""
    kind = type(given)
    hints, declared = hints_of(kind), [item for item in fields(given) if item.metadata]
    declared.sort(key=lambda item: item.name not in kind.__annotations__)
    return {item.name: _flag(item.name, item, hints[item.name], getattr(given, item.name)) for item in declared}


def _flag(name: str, declared: Field[Any], hint: Any, default: Any) -> click.Parameter:
    """The flag or argument of a field or parameter with that type and default."""
    (kind, several), about = kind_of(hint), declared.metadata
    names, metavar = about["names"], about["metavar"]
    if names and names[0].isupper():
        metavar, required = names[0] + "..." * several, default is MISSING
        how: dict[str, Any] = {"nargs": -1 if several else 1, "metavar": metavar if required else f"[{metavar}]"}
        return click.Argument([name], type=_Value(kind), required=required, help=about["help"], **how)
    how = {"default": default, "help": about["help"] + _default_in_words(default, names)}
    if kind is bool:
        return click.Option([name, *(names or [f"--{_word(name)}/--no-{_word(name)}"])], is_flag=True, **how)
    value = _Value(kind, **about["bounds"])
    return click.Option([name, *(names or [f"--{_word(name)}"])], type=value, metavar=metavar, multiple=several, **how)


def _default_in_words(default: Any, names: Sequence[str]) -> str:
    """The default as the help page has it; of a flag that can only be turned on, and of no value, nothing."""
    if default in (None, "", ()) or (default is False and len(names) == 1):
        return ""
    shown = [
        str(each).lower() if isinstance(each, bool) else f"{each:g}" if isinstance(each, float) else str(each)
        for each in (default if isinstance(default, tuple) else [default])
    ]
    return f" [default: {', '.join(shown)}]"


def _word(name: str) -> str:
    return name.strip("_").replace("_", "-")


class _Value(click.ParamType):
    """A value as it is typed, or as a YAML file has it."""

    def __init__(self, kind: Any, **bounds: Any) -> None:
        self.kind, self.bounds, self.name = kind, bounds, _METAVARS[kind]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        name, flag = (param.name or "", param.opts[0]) if param else ("", "")
        text = str(value) if self.kind in (int, float) else value  # of YAML, 1.5 and true are no whole numbers
        try:
            if isinstance(text, str | self.kind):
                return checked(name, self.kind(text), **self.bounds)
        except WrongOption as error:
            raise WrongOption(flag, error.problem) from error
        except UnmaskError:
            raise
        except ValueError:
            pass
        repeated = "; the flag may be repeated" if "," in str(value) and getattr(param, "multiple", False) else ""
        raise WrongOption(flag, f"must be {_WANTED[self.kind]}, got {value!r:.80}{repeated}")


def _read_config(ctx: click.Context, param: click.Parameter, path: Path | None) -> None:
    """Make what the file says the defaults of the command's flags."""
    if path is None:
        return
    flags = {
        _word(flag.name): flag for flag in ctx.command.params if isinstance(flag, click.Option) and flag is not param
    }
    ctx.default_map = found = {}
    for key, value in read_mapping(path, "config", "flags such as model, port and policy").items():
        check_known(f"key in {path}", [_word(str(key))], flags)
        flag = flags[_word(str(key))]
        if flag.name in found:
            raise UnmaskError(f"{path} gives {key} twice")
        several = [value] if flag.multiple and not isinstance(value, list) else value
        try:
            if flag.is_flag and not isinstance(value, bool | None):
                raise WrongOption(flag.name, f"must be {_WANTED[bool]}, got {value!r:.80}")
            if value is not None and isinstance(several, list) and None in several:
                flag.type.convert(None, flag, ctx)  # which fails; click would hand None on
            found[flag.name] = flag.default if value is None else flag.type_cast_value(ctx, several)
        except WrongOption as error:
            raise UnmaskError(f"{key} in {path} {error.problem}") from error


class Group(click.Group):
    """A group of commands, in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(
    cls=Group,
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
app.add_command(_bench := Group("bench", help="Measure speed on this machine.", no_args_is_help=True))
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
        return _complain(_complaint_of(error), error.exit_code)
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


def _complaint_of(error: click.UsageError) -> str:
    """What is wrong with the words of a command, and the way out."""
    ctx: Any = error.ctx
    see = f"; see `{ctx.command_path} --help`" if ctx else ""
    match error:
        case click.NoSuchCommand():
            return str(UnknownName("command", error.command_name, ctx.command.commands))
        case click.NoSuchOption():
            arguments = {each.name: _shown(each) for each in ctx.command.params if isinstance(each, click.Argument)}
            if argument := arguments.get(error.option_name.lstrip("-")):
                return f"unknown flag {error.option_name!r}; give {argument} without a flag{see}"
            near = [flag for flag in error.possibilities or () if flag != "--help"]
            return f"unknown flag {error.option_name!r}" + (f"; did you mean {near[0]!r}?" if near else see)
        case click.BadOptionUsage():
            return f"{error.option_name} {'needs a' if 'requires' in error.message else 'takes no'} value{see}"
        case click.MissingParameter(param=param) if param is not None:
            return f"{_shown(param)} is missing{see}"
    return re.sub(r"Got unexpected extra argument\S* \((.*)\)", r"it takes no argument \1", error.message) + see


def _shown(argument: click.Parameter) -> str:
    """An argument as the help page has it."""
    return argument.human_readable_name.strip("[.]")


def _complain(message: str, status: int) -> int:
    print(f"unmask: {' '.join(message.split())}", file=sys.stderr)
    return status
