"""Help pages in plain words: a flag, what it takes, what it does. Nothing is cut, however narrow the screen."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

_FLAG_COLUMN = 24  # letters of a flag beside its text; a longer one has its own line


class Command(TyperCommand):
    """A command whose flags stand under headings, in the order in which they were declared."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = [param for param in self.get_params(ctx) if param.param_type_name == "argument"]
        return ["[OPTIONS]", *(_argument(param) if param.required else f"[{_argument(param)}]" for param in arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        params: list[Any] = self.get_params(ctx)
        for param in params:
            if param.param_type_name == "argument":
                sections["Arguments"].append((_argument(param), param.help))
            elif not param.hidden:
                sections.setdefault(_heading(param), []).append((_flag(param), param.help))
        _write(formatter, sections)


class Group(TyperGroup):
    """A group of commands, each with the first line of what it does."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        Command.format_options(self, ctx, formatter)  # ty: ignore[invalid-argument-type]
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands = [(name, self.commands[name].help or "") for name in self.list_commands(ctx)]
        _write(formatter, {"Commands": [(name, text.strip().partition("\n")[0]) for name, text in commands]})


def _heading(param: Any) -> str:
    return getattr(param, "rich_help_panel", None) or "Options"


def _argument(param: Any) -> str:
    return param.metavar + ("" if param.nargs == 1 else "...")


def _flag(param: Any) -> str:
    names = ", ".join(sorted(param.opts, key=len))
    if param.secondary_opts:
        return f"--[no-]{names.removeprefix('--')}"
    return names if param.is_flag else f"{names} {param.metavar}"


def _write(formatter: Any, sections: dict[str, list[tuple[str, str]]]) -> None:
    for title, rows in sections.items():
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows, col_max=_FLAG_COLUMN)
