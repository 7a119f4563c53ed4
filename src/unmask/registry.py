"""Classes by name: ours are registered by a decorator, those of other packages are found by entry point.

A plug-in is imported when it is asked for, so a broken one fails only where it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from unmask.errors import UnknownName, UnmaskError, check_known

T = TypeVar("T")
C = TypeVar("C")


class Registry(Generic[T]):
    """The classes of one kind by name, and how to build one from its parameters."""

    def __init__(self, kind: str, group: str) -> None:
        self.kind = kind
        self.group = group
        self._classes: dict[str, type[Any]] = {}

    def register(self, name: str) -> Callable[[type[C]], type[C]]:
        def add(cls: type[C]) -> type[C]:
            if name in self._classes:
                raise UnmaskError(f"{self.kind} {name!r} is registered twice")
            self._classes[name] = cls
            return cls

        return add

    def adopt(self, name: str, cls: type[T]) -> None:
        """Know the class by this name alone, whatever it registered itself as."""
        self._classes = {known: found for known, found in self._classes.items() if found is not cls} | {name: cls}

    def names(self) -> list[str]:
        return sorted({*self._classes, *self._plugins})

    def find(self, name: str) -> type[T]:
        """The class of that name; ours win over a plug-in of the same name."""
        if name not in self._classes:
            plugin = self._plugins.get(name)
            if plugin is None:
                raise UnknownName(self.kind, name, self.names(), listed_as="installed")
            what = f"the plug-in {plugin.value!r} for {self.kind} {name!r}"
            try:
                found = plugin.load()
            except Exception as error:
                raise UnmaskError(f"{what} failed: {error}") from error
            if not isinstance(found, type):
                raise UnmaskError(f"{what} is not a class")
            self._classes[name] = found
        return self._classes[name]

    def build(self, name: str, params: dict[str, Any]) -> T:
        """An instance of that name; a parameter it does not have is an error with a near match."""
        cls = self.find(name)
        check_known(f"parameter of {name}", params, self.parameters(name))
        try:
            return cls(**params)
        except TypeError as error:
            raise UnmaskError(f"{self.kind} {name!r} cannot be built: {error}") from error

    def parameters(self, name: str) -> list[str]:
        """The names of its parameters; a class that is no dataclass has none."""
        cls = self.find(name)
        return [field.name for field in fields(cls) if field.init] if is_dataclass(cls) else []

    def name_of(self, instance: T) -> str:
        """The name under which the instance's class is registered, else the class's own name."""
        return next((name for name, cls in self._classes.items() if cls is type(instance)), type(instance).__name__)

    @cached_property
    def _plugins(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group)}
