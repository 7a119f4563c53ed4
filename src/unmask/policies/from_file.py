"""Policies out of a Python file, as `FILE.py:Class`: a rule is tried before it is packaged.

Loading one runs the file, so only a person's own words lead here: command lines and recipes. A name in a request or in
the files of a run never does.
"""

from __future__ import annotations

import ast
import contextlib
import copyreg
import hashlib
import importlib
import sys
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
        sources = _sources(path)
    except OSError as error:
        raise UnmaskError(f"cannot read the policy {path}: {error.strerror}") from error
    name = f"unmask_{path.stem}_{hashlib.blake2b(b''.join(sources.values()), digest_size=4).hexdigest()}"
    source = sources.pop(path)
    if name in sys.modules:
        return sys.modules[name]
    module = sys.modules[name] = ModuleType(name)  # dataclasses look their module up
    module.__file__ = str(path)
    for file in sources:
        if Path(getattr(sys.modules.get(file.stem), "__file__", None) or "") in _imported:
            del sys.modules[file.stem]
    _imported.update(sources)
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


def _sources(path: Path) -> dict[Path, bytes]:
    """The file, and every module (a single file) beside it that it imports, also through another one."""
    found, left = {path: path.read_bytes()}, [path]
    while left:
        with contextlib.suppress(SyntaxError, ValueError):  # told when the file is run
            for node in ast.walk(ast.parse(found[left.pop()])):
                names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                for file in (path.parent / f"{name.partition('.')[0]}.py" for name in names):
                    if file not in found and file.is_file():
                        found[file] = file.read_bytes()
                        left.append(file)
    return found
