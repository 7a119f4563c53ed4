"""`unmask serve` and `unmask batch`: what clients ask, over HTTP or in a file, is answered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING
from pathlib import Path
from typing import Any

from unmask import flags, progress, terminal
from unmask.commands.generate import open_model
from unmask.errors import Interrupted
from unmask.options import option
from unmask.parsing import with_config_file, with_flags
from unmask.serve.config import ServerConfig, with_keys
from unmask.serve.ending import holding_sigterm, stoppable
from unmask.settings import Settings


@with_config_file
@with_flags(ServerConfig, "Server")
@with_flags(Settings, "Settings", without=["seed"], early_stop=True)  # the server's own flag knows whether it was given
@with_flags(flags.Backend, "Cluster")
@with_flags(flags.Model, "Model and policy")
def serve(chosen: flags.Model, backend: flags.Backend, settings: Settings, config: ServerConfig) -> None:
    """Serve a model over HTTP, for OpenAI's clients.

    Policy and settings are for requests that do not say.
    """
    on_ray, config = backend.on_ray("serve"), with_keys(config, terminal.note)
    with stoppable(terminal.note):
        with holding_sigterm():  # libraries start threads when they are imported
            serving = flags.from_extra("unmask.serve.fleet" if on_ray else "unmask.serve.run", "serve", "serving")
        if on_ray:
            serving.Fleet(chosen.open, config, settings=settings, cluster=backend, say=terminal.note).run()
            return
        with serving.bind(config) as bound:
            llm, policy = open_model(chosen)
            served = serving.Served(llm, config, policy=policy, settings=settings)
            serving.Server(served, say=terminal.note).run(bound)


@with_flags(flags.Backend, "Cluster")
@with_flags(Settings, "Settings", early_stop=True)
@with_flags(flags.Model, "Model and policy")
def batch(
    chosen: flags.Model,
    settings: Settings,
    backend: flags.Backend,
    source: Path = option(MISSING, "Requests in OpenAI's batch form, one a line.", argument=True, metavar="IN"),
    target: Path = option(MISSING, "Answers are appended; one that is there is kept.", argument=True, metavar="OUT"),
    batch_size: int = flags.BATCH_SIZE,
    served_model_name: str | None = option(None, "Name of the model in requests."),
) -> None:
    """Answer a file of requests as a server would.

    Every answer is on disk at once; the same command goes on.
    """
    flags.check_writable(target)
    files = flags.from_extra("unmask.batch.files", "serve", "a batch")

    on_ray = backend.on_ray("batch")

    def answer(lines: Iterator[Any], count: int) -> Iterator[Any]:
        from unmask.batch.complete import complete, complete_on

        options: dict[str, Any] = {"settings": settings, "rows": batch_size, "name": served_model_name}
        if on_ray:
            return complete_on(backend, chosen.open, lines, count=count, **options)
        llm, policy = chosen.open()
        return complete(llm, lines, policy=policy, **options)

    try:
        with progress.batch() as on_progress, backend.quiet():
            done = files.run(source, target, answer, on_progress=on_progress)
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; every finished answer is in {target}, the same command goes on") from None
    terminal.note(progress.summary_of(done))
