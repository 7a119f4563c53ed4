"""Policies out of a Python file, as `FILE.py:Class`: a rule is tried before it is packaged.

Loading one runs the file, so only a person's own words lead here: command lines and recipes. A name in a request or in
the files of a run never does.
"""

from __future__ import annotations

import contextlib
import copyreg
import hashlib
import importlib
import sys
from modulefinder import ModuleFinder
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard

from unmask.errors import UnknownName, UnmaskError, one_line
from unmask.policies.base import Policy, describe, get, registry


def named(policy: str) -> str:
    """The name by which `get` finds the policy. One of the form FILE.py:Class is loaded, and its name has a digest.

    The digest is that of the file and of what it imports from beside it: another version of a rule is another policy.
    """
    file, colon, kind = policy.rpartition(":")
    if not colon or not file.endswith(".py"):
        return policy
    module = _module(Path(file).expanduser().absolute())
    found = getattr(module, kind, None)
    if not _is_policy(found):
        there = [name for name, one in vars(module).items() if _is_policy(one) and one.__module__ == module.__name__]
        raise UnknownName(f"policy of {file}", kind, there, listed_as="classes there with a method select")
    name = f"{Path(file).name}:{kind}@{module.__name__.rpartition('_')[2]}"
    registry.adopt(name, found)
    # A process elsewhere, such as a replica on a cluster, loads the file for itself.
    copyreg.pickle(found, lambda one: (_again, (f"{module.__file__}:{kind}", describe(one))))
    return name


def _again(policy: str, described: dict[str, Any]) -> Policy:
    return get(**described | {"name": named(policy)})


def _is_policy(value: object) -> TypeGuard[type[Policy]]:
    return isinstance(value, type) and callable(getattr(value, "select", None))


_imported: set[Path] = set()  # modules beside rules


def _module(path: Path) -> ModuleType:
    """The file as a module, run once for each version of it.

    Its imports find the modules beside it first, as those of a script do, and anew: they may have changed.
    """
    try:
        beside = _beside(path)
        source, *others = [file.read_bytes() for file in (path, *beside.values())]
    except OSError as error:
        raise UnmaskError(f"cannot read the policy {path}: {error.strerror}") from error
    name = f"unmask_{path.stem}_{hashlib.blake2b(b''.join([source, *others]), digest_size=4).hexdigest()}"
    if name in sys.modules:
        return sys.modules[name]
    module = sys.modules[name] = ModuleType(name)  # dataclasses look their module up
    module.__file__ = str(path)
    for other in beside:
        if Path(getattr(sys.modules.get(other), "__file__", None) or "") in _imported:
            del sys.modules[other]
    _imported.update(beside.values())
    sys.path.insert(0, str(path.parent))
    importlib.invalidate_caches()
    try:
        exec(compile(source, str(path), "exec"), vars(module))
    except Exception as error:
        del sys.modules[name]
        raise UnmaskError(f"the policy {path} failed: {type(error).__name__}: {one_line(error)}") from error
    finally:
        sys.path.remove(str(path.parent))
    return module


def _beside(path: Path) -> dict[str, Path]:
    """The modules beside the file that it imports, also through another one, by name."""
    finder = ModuleFinder(path=[str(path.parent)])
    with contextlib.suppress(SyntaxError, ValueError):  # told when the file is run
        finder.run_script(str(path))
    found: dict[str, Any] = finder.modules
    found.pop("__main__", None)  # the file itself
    return {name: Path(module.__file__) for name, module in found.items() if module.__file__}
