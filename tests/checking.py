"""Checks our package while tests run: the types of every call by beartype, and shapes by jaxtyping where there are any.

jaxtyping's own import hook does both to every function, and checks each argument twice: most of the time of a test that
decodes went there. JAXTYPING_DISABLE=1 turns the checks off.
"""

from __future__ import annotations

import ast
import inspect
import sys
from dataclasses import is_dataclass
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any, TypeVar, get_args, get_type_hints

import jaxtyping
from beartype import BeartypeConf, beartype

T = TypeVar("T", FunctionType, type)
WITH_TYPES = beartype(conf=BeartypeConf(violation_type=TypeError))
CONTEXT = jaxtyping.jaxtyped("context")  # of a call, whichever is the innermost


def checked(thing: T) -> T:
    """A function, or a dataclass when it is made, that refuses arguments and answers of other types and shapes."""
    if getattr(thing, "__no_type_check__", False):
        return thing
    if inspect.isclass(thing):
        if is_dataclass(thing) and "__init__" in vars(thing):
            thing.__init__ = checked(thing.__init__)
        return thing
    thing.__annotations__ = known_hints(thing)
    with_types = WITH_TYPES(thing)
    has_shapes = any(map(is_shape, thing.__annotations__.values()))
    return in_context(with_types) if has_shapes else with_types


def in_context(function: FunctionType) -> FunctionType:
    """A letter of a shape means the same number throughout a call."""

    @wraps(function)
    def call(*given: Any, **options: Any) -> Any:
        with CONTEXT:
            return function(*given, **options)

    return call


def known_hints(function: FunctionType) -> dict[str, Any]:
    """The annotations that mean something when the function is defined; others may be known to type checkers only."""
    found = {}
    for name, hint in function.__annotations__.items():
        try:
            found |= get_type_hints(
                SimpleNamespace(__annotations__={name: hint}), function.__globals__, include_extras=True
            )
        except Exception:
            continue
    return found


def is_shape(hint: Any) -> bool:
    return (inspect.isclass(hint) and issubclass(hint, jaxtyping.AbstractArray)) or any(map(is_shape, get_args(hint)))


class Decorate(ast.NodeTransformer):
    """Puts `checked` innermost on every function, and outermost on every class, for which a dataclass is made first."""

    def visit_FunctionDef(self, node: Any) -> Any:
        decorators = {ast.unparse(decorator).partition("(")[0] for decorator in node.decorator_list}
        if not decorators & {"no_type_check", "triton.jit"}:  # Triton compiles functions from their text
            place = 0 if isinstance(node, ast.ClassDef) else len(node.decorator_list)
            node.decorator_list.insert(place, ast.copy_location(ast.Name("__checked__", ast.Load()), node))
            self.generic_visit(node)
        return node

    visit_ClassDef = visit_AsyncFunctionDef = visit_FunctionDef


class Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        """From the source: cached bytecode is what other processes import."""
        tree = Decorate().visit(ast.parse(self.get_data(self.path)))
        return compile(tree, self.path, "exec", dont_inherit=True)

    def exec_module(self, module: Any) -> None:
        module.__checked__ = checked
        super().exec_module(module)


class Finder(MetaPathFinder):
    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] != "unmask":
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = Loader(spec.loader.name, spec.loader.path)
        return spec


def install() -> None:
    assert "unmask" not in sys.modules, "what was imported before cannot be checked"
    if not jaxtyping.config.jaxtyping_disable:
        sys.meta_path.insert(0, Finder())
