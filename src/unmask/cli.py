"""The command line: a table of verbs, and what becomes of errors. Torch is imported when the work begins.

Results go to stdout, everything else to stderr. Exit status: 0 done, 1 the work failed, 2 the command was wrong, 130
the user ended it with Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from unmask.commands.bench import bench_generate, bench_rule, bench_serve, bench_step
from unmask.commands.evaluate import evaluate, report
from unmask.commands.generate import chat, generate
from unmask.commands.pages import play, view
from unmask.commands.policies import policies
from unmask.commands.serve import batch, serve
from unmask.complaints import complaint_of, in_flags
from unmask.errors import Interrupted, OutOfMemory, UnmaskError, WorkFailed
<<<<<<< HEAD
from unmask.help_pages import Command, Group
=======
from unmask.prompt_files import read_prompts, result_of
from unmask.serve.config import ServerConfig
from unmask.serve.ending import holding_sigterm, stoppable
from unmask.serve.keys import with_keys
from unmask.settings import Settings

if TYPE_CHECKING:
    from unmask.report.measured import Measured
    from unmask.types import Output
>>>>>>> hard

INTERRUPTED = 130  # as shells have it: 128 and the number of the signal
_PLAIN: dict[str, Any] = {
    "cls": Group,
    "no_args_is_help": True,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
}
# The base class of errors about the command itself; newer releases of typer carry a click of their own.
_UsageError: Any = next(cls for cls in typer.BadParameter.__mro__ if cls.__name__ == "ClickException")
_VERBS = {
    "generate": generate,
    "chat": chat,
    "serve": serve,
    "play": play,
    "view": view,
    "batch": batch,
    "policies": policies,
    "eval": evaluate,
    "report": report,
}
_BENCH = {"rule": bench_rule, "step": bench_step, "generate": bench_generate, "serve": bench_serve}

app = typer.Typer(name="unmask", context_settings={"help_option_names": ["-h", "--help"]}, **_PLAIN)
bench = typer.Typer(help="Measure speed on this machine.", **_PLAIN)
app.add_typer(bench, name="bench")
for _group, _verbs in ((app, _VERBS), (bench, _BENCH)):
    for _name, _command in _verbs.items():
        _group.command(_name, cls=Command)(_command)


def _show_version(wanted: bool) -> bool:
    if wanted:
        from unmask import __version__

        print(__version__)
        raise typer.Exit
    return wanted


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Decode with masked diffusion language models (LLaDA, Dream): many tokens per forward pass, safely."""


<<<<<<< HEAD
=======
def _open(chosen: flags.Model) -> tuple[Any, Any]:
    """The model and the policy, with a sign of life while a large model loads."""
    with terminal.loading(chosen.model) as on_bytes:
        return chosen.open(on_bytes=on_bytes)


@app.command()
@flags.with_flags(Settings)
@flags.with_flags(flags.Model)
def generate(
    chosen: flags.Model,
    settings: Settings,
    prompts: Annotated[list[str] | None, typer.Argument(metavar="PROMPT", help="Several are decoded together.")] = None,
    file: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Read a prompt; .jsonl: many; -: stdin.")
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Put each prompt into the checkpoint's chat template.")] = False,
    infill: Annotated[bool, typer.Option("--infill", help="Fill the mask tokens inside the prompt.")] = False,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Record every forward pass to this file (JSON lines).")
    ] = None,
    trace_overlap: Annotated[bool, typer.Option("--trace-overlap", help="Record the overlap matrices too.")] = False,
    batch_size: Annotated[int, typer.Option(min=1, metavar="N", help="Prompts decoded together.")] = 32,
    live: flags.Live = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, one object per line; --json=full: with canvas and step map.")
    ] = False,
    json_full: Annotated[bool, typer.Option("--json-full", hidden=True)] = False,
) -> None:
    """Continue one or more prompts (or fill the masks in them)."""
    given = read_prompts(prompts, file)
    texts = [each.text for each in given]
    flags.check_writable(trace)
    detail = flags.detail(trace, overlap=trace_overlap)
    as_json = as_json or json_full
    watched = terminal.watches(live, prompts=len(texts), as_json=as_json)
    llm, policy = _open(chosen)
    terminal.note(chosen.about(texts) or flags.hint_of_chat(llm, texts, plain=not (chat or infill)))
    options = {"policy": policy, "settings": settings, "trace": detail}
    requests, asking = flags.requests_for(llm, texts, chat=chat, infill=infill, **options), iter(given)

    def show(output: Output) -> None:
        asked_by = next(asking)
        if as_json:
            print(result_of(output.to_dict(), asked_by, full=json_full), flush=True)
        else:
            terminal.show_text(output.text)

    with flags.traces_saved(requests, trace):
        if watched or (len(texts) == 1 and terminal.is_terminal(sys.stdout) and not (as_json or infill)):
            terminal.show_answer(llm, requests[0], live=watched, show=show)
        else:
            with terminal.progress(len(requests)) as on_step:
                llm.run(requests, batch_size=batch_size, on_step=on_step, on_output=show)


@app.command()
@flags.with_flags(Settings, early_stop=True)
@flags.with_flags(flags.Model)
def chat(
    chosen: flags.Model,
    settings: Settings,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="A system message to begin with.")] = None,
    live: flags.Live = None,
) -> None:
    """Talk with a model; /help lists the commands of the conversation."""
    from unmask.conversation import Conversation

    watched = terminal.watches(live)
    llm, policy = _open(chosen)
    talk = Conversation(llm, policy=policy, settings=settings, system=system)
    terminal.converse(talk, chosen.about, live=watched)


@app.command()
@with_config_file
@flags.with_flags(ServerConfig)
@flags.with_flags(Settings, without=["seed"], early_stop=True)  # the server's own flag knows whether it was given
@flags.with_flags(flags.Backend)
@flags.with_flags(flags.Model)
def serve(chosen: flags.Model, backend: flags.Backend, settings: Settings, config: ServerConfig) -> None:
    """Serve a model over HTTP, for OpenAI's clients.

    Policy and settings are for requests that do not say.
    """
    on_ray, config = backend.on_ray("serve"), with_keys(config, terminal.note)
    how = {"settings": settings, "say": terminal.note}
    with stoppable():
        with holding_sigterm():  # libraries start threads when they are imported
            serving = flags.from_extra("unmask.serve.fleet" if on_ray else "unmask.serve.run", "serve", "serving")
        if on_ray:
            serving.Fleet(chosen.open, config, cluster=backend, **how).run()
            return
        with serving.bind(config) as bound:
            llm, policy = _open(chosen)
            serving.Server(llm, config, policy=policy, **how).run(bound)


@app.command()
@flags.with_flags(Settings, early_stop=True)
@flags.with_flags(flags.Model)
def play(chosen: flags.Model, settings: Settings, port: flags.Port = 0, no_browser: flags.NoBrowser = False) -> None:
    """Watch masks fill in the browser.

    The playground of a model, which only this machine can reach.
    """
    serving = flags.from_extra("unmask.serve.run", "serve", "the playground")
    config, how = with_keys(ServerConfig(port=port), terminal.note), {"settings": settings, "say": terminal.note}
    with serving.bind(config) as bound:
        llm, policy = chosen.open()
        serving.Server(llm, config, policy=policy, on_ready=flags.opener(no_browser), **how).run(bound)


@app.command()
def view(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Traces; two are shown side by side.")],
    html: Annotated[Path | None, typer.Option(help="Write the viewer to one file that needs no server.")] = None,
    port: flags.Port = 0,
    no_browser: flags.NoBrowser = False,
) -> None:
    """Look at traces in the browser, pass by pass."""
    flags.check_writable(html)
    page = flags.viewer(files)
    if html is not None:
        html.write_text(page, encoding="utf-8")
        return
    from unmask.web.show import serve_page

    def on_ready(url: str) -> None:
        terminal.note(f"the viewer is at {url}; Ctrl-C ends it")
        flags.opener(no_browser)(url)

    serve_page(page, port=port, on_ready=on_ready)


@app.command()
@flags.with_flags(flags.Backend)
@flags.with_flags(Settings, early_stop=True)
@flags.with_flags(flags.Model)
def batch(
    chosen: flags.Model,
    settings: Settings,
    backend: flags.Backend,
    source: Annotated[Path, typer.Argument(metavar="IN", help="Requests in OpenAI's batch form, one a line.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="Answers are appended; one that is there is kept.")],
    batch_size: Annotated[int, typer.Option(min=1, metavar="N", help="Texts decoded together.")] = 32,
    served_model_name: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Name of the model in requests.")
    ] = None,
) -> None:
    """Answer a file of requests as a server would.

    Every answer is on disk at once; the same command goes on.
    """
    flags.check_writable(target)
    files = flags.from_extra("unmask.batch.files", "serve", "a batch")

    on_ray = backend.on_ray("batch")

    def answer(lines: Iterator[Any], count: int) -> Iterator[Any]:
        from unmask.batch import complete, remote

        options: dict[str, Any] = {"settings": settings, "rows": batch_size, "name": served_model_name}
        if on_ray:
            return remote.complete_on(backend, chosen.open, lines, count=count, **options)
        llm, policy = chosen.open()
        return complete.complete(llm, lines, policy=policy, **options)

    try:
        with terminal.batch_progress() as on_progress, backend.quiet():
            done = files.run(source, target, answer, on_progress=on_progress)
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; every finished answer is in {target}, the same command goes on") from None
    terminal.note(terminal.summary_of(done))


@app.command()
def policies(as_json: flags.Json = False) -> None:
    """List the installed policies with their parameters and defaults."""
    from unmask.policies.listing import installed

    rows = installed()
    if as_json:
        print("\n".join(json.dumps(row) for row in rows))
    else:
        terminal.show_policies(rows)


@app.command("eval")
@flags.with_flags(flags.Backend)
@flags.with_flags(flags.Evaluation)
def evaluate(
    asked: flags.Evaluation,
    backend: flags.Backend,
    recipe: Annotated[
        str | None, typer.Argument(metavar="RECIPE", help="YAML file, or the name of one in the package.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder of the run; one that is there is resumed. [default: runs/NAME]"),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Discard what the folder holds of these cells; measure them anew.")
    ] = False,
    listed: Annotated[
        bool, typer.Option("--list", help="List recipes, tasks, benchmarks and policies, and exit.")
    ] = False,
    as_json: flags.Json = False,
) -> None:
    """Measure models x policies x settings x tasks.

    Every finished item is on disk at once; the same command resumes.
    """
    if listed:
        from unmask.evals.packaged import listing

        screen.show_names(listing(), as_json=as_json)
        return
    from unmask.evals.run import run as measure

    chosen, name = asked.recipe(recipe)
    load, folder = backend.loader(), out or Path("runs") / name
    try:
        with terminal.eval_progress() as heard, backend.quiet():
            command, say = flags.command_line(), terminal.note
            finished = measure(chosen, out=folder, load=load, command=command, fresh=fresh, say=say, **heard)
    except KeyboardInterrupt:
        again = "the same command without --fresh" if fresh else "the same command"
        raise Interrupted(f"interrupted; every finished item is in {folder}, {again} goes on") from None
    terminal.note_finished(finished, folder)
    _show_cells(flags.measured(finished.cells), as_json=as_json)


def _show_cells(cells: list[Measured], *, as_json: bool) -> None:
    from unmask.report.studies import cells_table
    from unmask.report.tables import SUMMARY, cell_record

    if as_json:
        print("\n".join(json.dumps(cell_record(cell, cells), ensure_ascii=False) for cell in cells))
    else:
        screen.show_tables([cells_table("Measured", SUMMARY, cells)], keep_columns=True)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUNS", help="Folders of `unmask eval`, or a folder of such.")],
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write tables and figures to this folder.")] = None,
    form: Annotated[
        list[str] | None,
        typer.Option(
            "--format",
            metavar="FORM",
            help="terminal, markdown, csv, latex or json; with --out also png, svg and pdf, may be repeated. "
            "[default: terminal; with --out, every kind of file]",
        ),
    ] = None,
    as_json: flags.Json = False,
) -> None:
    """Make tables and figures of what was measured.

    Numbers come with intervals, and beside the paper's values where these belong.
    """
    from unmask.report import build

    chosen = build.check_formats(form or (["json"] if as_json else []), printed=out is None)
    made = build.report(runs, out=out, formats=chosen)
    if out is not None:
        print("\n".join(str(path) for path in made.files))
    elif chosen:
        print(made.text(chosen[0]), end="")
    else:
        screen.show_tables(made.tables)


@bench.command("rule")
@flags.with_flags(RuleWorkload)
def bench_rule(workload: RuleWorkload, as_json: flags.Json = False) -> None:
    """Time the mean-field rule beside the formula as printed.

    Logits in, commit set out.
    """
    from unmask.bench.rule import bench_rule as measure

    with terminal.status("measuring"):
        timings = measure(**asdict(workload))
    _show_timings(timings, as_json=as_json)


@bench.command("step")
@flags.with_flags(Workload, repeats=5)
@flags.with_flags(flags.BenchPolicy)
def bench_step(chosen: flags.BenchPolicy, workload: Workload, as_json: flags.Json = False) -> None:
    """Time single forward passes: model, policy, commit.

    Beside them stands the floor of this device, which is measured too.
    """
    from unmask.bench.step import bench_step as measure

    with terminal.status("preparing") as shown:
        timings = measure(*chosen.open(workload), on_progress=shown.update, on_missing=terminal.note)
    _show_timings(timings, as_json=as_json)


@bench.command("generate")
@flags.with_flags(Workload)
@flags.with_flags(flags.BenchPolicy)
def bench_generate(chosen: flags.BenchPolicy, workload: Workload, as_json: flags.Json = False) -> None:
    """Time whole requests: tokens/s of everything decoded.

    Beside them stands the floor of this device, which is measured too.
    """
    from unmask.bench.generate import bench_generate as measure

    with terminal.status("preparing") as shown:
        timings = measure(*chosen.open(workload), on_progress=shown.update)
    _show_timings(timings, as_json=as_json)


@bench.command("serve")
@flags.with_flags(ServeWorkload)
@flags.with_flags(flags.BenchModel)
def bench_serve(chosen: flags.BenchModel, workload: ServeWorkload, as_json: flags.Json = False) -> None:
    """Put a server under load, and check every answer.

    Each is compared with the one that its request gets alone.
    """
    from unmask.bench.serve import bench_serve as measure
    from unmask.engine.generator import Generator

    load, parameters = partial(chosen.load, workload.seed), flags.parse_fields(workload.set_)
    with terminal.status("loading") as shown, ExitStack() as ending:
        llm = Generator(load()) if workload.compare else None
        how: dict[str, Any] = {"url": workload.url, "key": os.environ.get("UNMASK_API_KEY")}
        if workload.url is None:
            child = flags.from_extra("unmask.server_process", "serve", "a server")
            how = ending.enter_context(child.started(load, workload, parameters))._asdict()
        how |= {"on_progress": shown.update, "on_minute": terminal.note}
        timing = measure(workload, llm=llm, parameters=parameters, **how)
    _show_timings([timing], as_json=as_json)
    for line in timing.faults:
        terminal.note(line)
    if timing.failed:
        raise WorkFailed(timing.failed)


def _show_timings(timings: Sequence[Any], *, as_json: bool) -> None:
    if as_json:
        print("\n".join(json.dumps(timing.to_dict()) for timing in timings))
    else:
        terminal.show_timings(timings[0].in_words(), [row for timing in timings for row in timing.rows()])


>>>>>>> hard
def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit."""
    # How long a thread of libgomp spins before it sleeps; read when torch is imported. On a busy machine, threads that
    # spin for longer take the cores of the threads that they wait for (docs/performance.md).
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit status; what went wrong is one line on stderr."""
    try:
        # Typer's flags take a value always or never.
        end = arguments.index("--") if "--" in arguments else len(arguments)
        words = ["--json-full" if word == "--json=full" else word for word in arguments[:end]] + arguments[end:]
        status = app(words, prog_name="unmask", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
    except _UsageError as error:
        return _complain(complaint_of(error), 2)
    except Interrupted as error:
        return _complain(str(error), INTERRUPTED)
    except UnmaskError as error:
        return _complain(in_flags(error, _flags_of(arguments)), 1 if isinstance(error, WorkFailed | OutOfMemory) else 2)
    except (KeyboardInterrupt, typer.Abort):
        return _complain("interrupted", INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except (OSError, UnicodeEncodeError, MemoryError) as error:
        return _complain(str(error) or "out of memory", 1)
    # Newer releases of typer turn an interrupt into this status.
    return _complain("interrupted", INTERRUPTED) if status == INTERRUPTED else status or 0


def _flags_of(arguments: list[str]) -> set[str]:
    """The flags of the command that was typed."""
    command: Any = typer.main.get_command(app)
    for word in arguments:
        if word not in getattr(command, "commands", ()):
            break
        command = command.commands[word]
    flags = {name for each in command.params for name in each.opts}
    # Of `eval`, most are keys of a recipe too: there, an option is a flag if it was typed.
    return flags & {word.partition("=")[0] for word in arguments} if command.name == "eval" else flags


def _complain(message: str, status: int) -> int:
    whole = message if message.startswith("Usage:") else f"unmask: {' '.join(message.split())}"
    print(whole, file=sys.stderr)
    return status
