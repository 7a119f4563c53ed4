"""Policies out of a Python file, as `FILE.py:Class`: a rule is tried before it is packaged.

Loading one runs the file, so only a person's own words lead here: command lines and recipes. A name in a request or in
the files of a run never does.
"""

from __future__ import annotations

import copyreg
import hashlib
import sys
from dataclasses import fields, is_dataclass
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

from unmask.errors import UnknownName, UnmaskError, one_line
from unmask.policies.base import Policy, get, registry


def named(policy: str) -> str:
    """The name by which `get` finds the policy. One of the form FILE.py:Class is loaded, and its name has a digest.

    The digest is that of the file: another version of a rule is another policy.
    """
    file, colon, kind = policy.rpartition(":")
    if not colon or not file.endswith(".py"):
        return policy
    module = _module(Path(file).expanduser())
    found = getattr(module, kind, None)
    if not isinstance(found, type):
        classes = [
            name for name, value in vars(module).items() if _is_policy(value) and value.__module__ == module.__name__
        ]
        raise UnknownName(f"class of {file}", kind, classes, listed_as="policies there")
    if not _is_policy(found):
        raise UnmaskError(f"{kind} of {file} is no policy: it has no method select(view, state)")
    name = f"{Path(file).name}:{kind}@{module.__name__.rpartition('_')[2]}"
    registry.adopt(name, found)
    # A process elsewhere, such as a replica on a cluster, loads the file for itself.
    copyreg.pickle(found, lambda one: (_again, (f"{module.__file__}:{kind}", _parameters(one))))
    return name


def _again(policy: str, parameters: dict[str, Any]) -> Policy:
    return get(named(policy), **parameters)


def _parameters(policy: Any) -> dict[str, Any]:
    return {item.name: getattr(policy, item.name) for item in fields(policy)} if is_dataclass(policy) else {}


def _is_policy(value: object) -> bool:
    return isinstance(value, type) and callable(getattr(value, "select", None))


def _module(path: Path) -> ModuleType:
    """The file as a module, run once for each version of it."""
    try:
        source = path.read_bytes()
    except OSError as error:
        raise UnmaskError(f"cannot read the policy {path}: {error.strerror}") from error
    name = f"unmask_{path.stem}_{hashlib.blake2b(source, digest_size=4).hexdigest()}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_loader(name, None, origin=str(path))
    assert spec is not None
    module = sys.modules[name] = module_from_spec(spec)  # dataclasses look their module up
    module.__file__ = str(path.absolute())
    try:
        exec(compile(source, str(path), "exec"), vars(module))
    except Exception as error:
        del sys.modules[name]
        raise UnmaskError(f"the policy {path} failed: {type(error).__name__}: {one_line(error)}") from error
    return module
