"""`unmask serve` of the toy with a part that never ends, as a process of its own.

It says `held` on stdout when that part has begun. The first argument names the part, the others are the command's. With
PLAIN set, the server has neither httptools nor uvloop.
"""

import os
import sys
import threading

if os.environ.get("PLAIN"):
    sys.modules["httptools"] = sys.modules["uvloop"] = None

import unmask
from unmask import cli, flags, policies
from unmask.engine.generator import Generator
from unmask.models.base import LoadedModel


def hold(*_, **__) -> None:
    sys.stdout.write("held\n")
    sys.stdout.flush()
    threading.Event().wait()


class Holding(Generator):
    """Holds on to every call of one of its methods."""

    def __init__(self, loaded: LoadedModel, part: str) -> None:
        super().__init__(loaded)
        setattr(self, {"warmup": "warmup", "encoding": "request", "pass": "decode"}[part], hold)


def opened(chosen: flags.Model, **_) -> tuple[Generator, policies.Policy]:
    if part == "loading":
        hold()
    toy = unmask.load("toy", device="cpu")
    loaded = LoadedModel(model=toy.model, codec=toy.codec)
    return (toy if part == "nothing" else Holding(loaded, part)), policies.get("fixed")


part = sys.argv[1]
flags.Model.open = opened
cli.main(["serve", "--port", "0", *sys.argv[2:]])
