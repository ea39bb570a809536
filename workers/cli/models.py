"""`gridq models`: the models of the grid, and search, pull, list, show and remove those of this machine."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gridq.cli.exit_codes import EPILOG, DebugOption, JsonOption
from gridq.cli.grid import GridOption
from gridq.cli.output import format_local_time, format_span, make_console, make_table, print_json

if TYPE_CHECKING:
    from gridq.config.settings import Settings
    from workers.profiles.gpu.model_files.local_models import LocalModel
    from workers.profiles.gpu.model_files.pulling import PullOptions, PullProgress

LINE_SECONDS = 10.0
"""How often progress is printed where it cannot be drawn."""

app = typer.Typer()
models_app = typer.Typer(
    rich_markup_mode=None,
    help="Without a command: show the models and other capabilities you can use now, their seats, and where "
    "models are loaded. The commands work on the models of this machine.",
    short_help="Show the grid's models; pull, list and remove this machine's.",
    epilog=EPILOG,
)
app.add_typer(models_app, name="models")

MODEL_HELP = "hf:org/repo, hf:org/repo:quant, file:/path, https://…, or a name of [[gpu.models]]."
ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="Name of a model of this machine.", show_default=False)
]


@models_app.callback(invoke_without_command=True)
def models(
    context: typer.Context, grid: GridOption = None, json: JsonOption = False, debug: DebugOption = False
) -> None:
    if context.invoked_subcommand is None:
        _show_grid_models(grid, json)


def _show_grid_models(grid: str | None, json: bool) -> None:
    from gridq.cli.grid import describe_grid, load_settings, open_client
    from gridq.protocol.queue_names import format_queue
    from gridq.seats.registry import list_offers

    config = load_settings(grid)
    with open_client(config) as client:
        offers = list_offers(client.workers())
    if json:
        print_json(offers)
        return
    if not offers:
        typer.echo(f"No live seat at {describe_grid(config)} offers a capability", err=True)
        return
    columns = ("capability", "loaded on", "seats", "free slots")
    table = make_table(*columns, numbers=columns[-1:], keep_first=True)
    for offer in offers:
        loaded = "\n".join(offer["loaded"]) or ("no" if offer["loads"] else "-")
        free_slots = f"{offer['free_slots']}/{offer['concurrency']}"
        table.add_row(format_queue(offer["queue"]), loaded, "\n".join(offer["seats"]), free_slots)
    make_console().print(table)


@models_app.command(epilog=EPILOG, short_help="Search the Hugging Face hub for GGUF models.")
def search(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="WORDS", help="Words in the names of repositories.", show_default=False),
    ] = None,
    *,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100, help="Most repositories shown.")] = 20,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Search the Hugging Face hub for repositories with GGUF files, the most downloaded first."""
    from workers.profiles.gpu.model_files import hub

    found = hub.search(" ".join(words or ()), limit)
    if json:
        print_json([{"reference": f"hf:{each.repo}", **vars(each)} for each in found])
        return
    if not found:
        typer.echo("The hub has no such repository with GGUF files", err=True)
        return
    table = make_table("reference", "downloads", "updated", "access", numbers=("downloads",), keep_first=True)
    for each in found:
        access = "gated" if each.gated else "open"
        table.add_row(f"hf:{each.repo}", f"{each.downloads:,}", each.updated or "-", access)
    make_console().print(table)


@models_app.command(epilog=EPILOG, short_help="Download a model and offer it on this machine's seat.")
def pull(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)],
    *,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="NAME",
            help="Name in the grid. Default: made from the reference.",
            show_default=False,
        ),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(
            "--context",
            metavar="TOKENS",
            min=256,
            help="Tokens of one request. Default: 8192.",
            show_default=False,
        ),
    ] = None,
    family: Annotated[
        list[str] | None,
        typer.Option(
            "--family", metavar="NAME", help="A family it belongs to. Can be repeated.", show_default=False
        ),
    ] = None,
    any_: Annotated[
        bool | None,
        typer.Option(
            "--any/--no-any", help="Whether it takes requests for the model any.", show_default=False
        ),
    ] = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Download a model, verify it, and offer it on this machine's gpu seats.

    A download that was interrupted goes on where it stopped. Files go to the Hugging Face cache (HF_HOME).
    A running gridq up or gridq worker restarts the seat, which then offers the model.
    """
    from gridq.config.settings import settings
    from workers.profiles.gpu.model_files.pulling import PullOptions
    from workers.supervisor.worker import request_reload

    config = settings()
    options = PullOptions(name=name, context=context, families=tuple(family or ()), any=any_)
    pulled = _pull(config, model, options, quiet=json)
    is_reloaded = request_reload(config.home)
    if json:
        print_json(_describe(pulled))
        return
    typer.echo(f"{pulled.name} is here: {_format_size(pulled.size)}, context {pulled.context}")
    when = (
        "The grid offers it once its seat has restarted"
        if is_reloaded
        else "gridq up and gridq worker offer it"
    )
    typer.echo(f"{when}, as llm:{pulled.name}. To try it: gridq chat {pulled.name}")


@models_app.command(epilog=EPILOG, short_help="Download every model that the seats file names.")
def prefetch(json: JsonOption = False, debug: DebugOption = False) -> None:
    """Download every model of [[gpu.models]] whose file is a reference, so that no request waits for it."""
    from gridq.config.settings import settings
    from workers.machine.seats import read_gpu_table
    from workers.profiles.gpu.model_files.machine_models import list_models
    from workers.profiles.gpu.model_files.pulling import PullOptions
    from workers.supervisor.worker import request_reload

    config = settings()
    table = read_gpu_table(config)
    missing = [each.name for each in list_models(table.get("models", []), config.home) if each.is_reference]
    pulled = [_pull(config, name, PullOptions(), quiet=json) for name in missing]
    if pulled:
        request_reload(config.home)
    if json:
        print_json([_describe(each) for each in pulled])
    else:
        names = ", ".join(each.name for each in pulled)
        typer.echo(f"Pulled {names}" if pulled else "Nothing to pull: every model of the seats file is here")


@models_app.command("list", epilog=EPILOG, short_help="List the models of this machine.")
def list_(json: JsonOption = False, debug: DebugOption = False) -> None:
    """List the models that were pulled to this machine, the pulls that run or failed, and their sizes."""
    from gridq.config.settings import settings
    from workers.profiles.gpu.model_files.local_models import LocalModels
    from workers.profiles.gpu.model_files.pulling import list_progress

    home = settings().home
    found = LocalModels(home).read()
    pulls = [each for each in list_progress(home) if each.state != "done" and each.done]
    if json:
        print_json(
            {"models": [_describe(each) for each in found], "pulls": [_describe_pull(each) for each in pulls]}
        )
        return
    if not found and not pulls:
        typer.echo("No model has been pulled to this machine. Find one: gridq models search WORDS", err=True)
        return
    columns = ("name", "size", "context", "last used", "reference")
    table = make_table(*columns, numbers=("size", "context"), keep_first=True)
    for each in found:
        row = (_format_size(each.size), str(each.context), format_local_time(each.used_at), each.reference)
        table.add_row(each.name, *row)
    for progress in pulls:
        done = f"{progress.share:.0%}" if progress.total else "-"
        table.add_row(progress.name, done, "-", progress.state, progress.reference)
    make_console().print(table)


@models_app.command(epilog=EPILOG, short_help="Show one model of this machine.")
def show(model: ModelArgument, json: JsonOption = False, debug: DebugOption = False) -> None:
    """Show a model of this machine: its size, context, architecture, memory, files and their digests."""
    from gridq.config.settings import settings
    from workers.machine.seats import read_gpu_table
    from workers.profiles.gpu.model_files.file_use import is_in_use
    from workers.profiles.gpu.model_files.local_models import LocalModels
    from workers.profiles.gpu.model_files.memory_estimate import estimate_memory

    config = settings()
    found = LocalModels(config.home).get(model)
    memory_mb, slots = estimate_memory(found, read_gpu_table(config))
    if json:
        print_json({**_describe(found), "memory_mb": memory_mb})
        return
    rows = [
        ("name", found.name),
        ("reference", found.reference),
        ("commit", found.commit or "-"),
        ("quantization", found.quantization or "-"),
        ("access", found.access or "-"),
        ("architecture", found.architecture),
        ("size", _format_size(found.size)),
        ("context", f"{found.context} of {found.trained_context or 'unknown'}"),
        ("memory", f"about {memory_mb} MB for {slots} requests at once, without kept prompts"),
        ("loaded", "yes" if is_in_use(found.path) else "no"),
        ("last used", format_local_time(found.used_at)),
    ]
    rows += [("file", f"{file.path}\nsha256 {file.sha256}") for file in found.files]
    table = make_table("", " ", keep_first=True)
    table.show_header = False
    for row in rows:
        table.add_row(*row)
    make_console().print(table)


@models_app.command(epilog=EPILOG, short_help="Remove a model from this machine.")
def rm(model: ModelArgument, json: JsonOption = False, debug: DebugOption = False) -> None:
    """Remove a model from this machine, and its files if gridq downloaded them. A loaded model stays.

    Also removes what a download that broke off has left.
    """
    from gridq.config.settings import settings
    from workers.profiles.gpu.model_files.local_models import LocalModels
    from workers.profiles.gpu.model_files.pulling import forget_pull
    from workers.supervisor.worker import request_reload

    config = settings()
    found = LocalModels(config.home).find(model)
    name = model if found is None else found.name
    freed = 0 if found is None else LocalModels(config.home).remove(name)
    freed += forget_pull(config.home, name)
    request_reload(config.home)
    if json:
        print_json({"name": name, "freed_bytes": freed})
    elif found is None:
        typer.echo(f"Removed what the pull of {name} had left: {_format_size(freed)} are free again")
    elif found.is_owned:
        typer.echo(f"Removed {found.name}: {_format_size(freed)} are free again")
    else:
        typer.echo(
            f"Removed {found.name} from the list; its file was here before gridq, and stays: {found.path}"
        )


def _pull(config: Settings, text: str, options: PullOptions, *, quiet: bool) -> LocalModel:
    """Pull what `text` names, with what the seats file says of it, and show the progress unless `quiet`."""
    from workers.machine.mirror_registry import find_mirrors
    from workers.machine.seats import read_gpu_table
    from workers.profiles.gpu.model_files.machine_models import find_reference, read_limit
    from workers.profiles.gpu.model_files.pulling import pull

    table = read_gpu_table(config)
    reference, known = find_reference(text, table.get("models", []), config.home)
    folders = table.get("model_folders")
    options = replace(
        options,
        cache_bytes=read_limit(table, "cache_limit_gb"),
        folders=tuple(map(str, folders)) if isinstance(folders, list) else (),
    )
    if known is not None:
        options = replace(
            options,
            name=options.name or known.name,
            context=options.context or known.context,
            families=options.families or known.families,
        )
    with show_progress(quiet=quiet) as watch:
        return pull(reference, config.home, options, watch, partial(find_mirrors, config))


@contextmanager
def show_progress(*, quiet: bool) -> Iterator[Callable[[PullProgress], None]]:
    """Provide a function that shows how far a pull is: one line that is redrawn on a terminal, else a line
    each ten seconds. Both go to stderr.
    """
    is_terminal = sys.stderr.isatty()
    last_state, last_note, last_at = "", "", 0.0

    def watch(progress: PullProgress) -> None:
        nonlocal last_state, last_note, last_at
        clear = "\r\x1b[K" if is_terminal else ""
        if progress.note != last_note:
            last_note = progress.note
            sys.stderr.write(f"{clear}{progress.note}\n")
        now = time.monotonic()
        if is_terminal or progress.state != last_state or now - last_at >= LINE_SECONDS:
            last_state, last_at = progress.state, now
            sys.stderr.write(f"{clear}{format_progress(progress)}" + ("" if is_terminal else "\n"))
            sys.stderr.flush()

    try:
        yield (lambda _: None) if quiet else watch
    finally:
        if is_terminal and last_state:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def format_progress(progress: PullProgress) -> str:
    """Format how far a pull is: `qwen3-8b: downloading 1.2 GB of 5.0 GB, 24%, 3 min left`."""
    if not progress.total or progress.state in ("resolving", "failed"):
        return f"{progress.name}: {progress.state}"
    if progress.state == "done":
        return f"{progress.name}: done, {_format_size(progress.total)}"
    text = (
        f"{progress.name}: {progress.state} {_format_size(progress.done)} of {_format_size(progress.total)}"
    )
    left = "" if progress.eta is None else f", {format_span(progress.eta)} left"
    source = f" from {progress.source}" if progress.source and progress.state != "verifying" else ""
    return f"{text}{source}, {progress.share:.0%}{left}"


def _describe(model: LocalModel) -> dict[str, Any]:
    from workers.profiles.gpu.model_files.file_use import is_in_use

    return {**model.model_dump(), "size": model.size, "loaded": is_in_use(model.path)}


def _describe_pull(progress: PullProgress) -> dict[str, Any]:
    names: Sequence[str] = ("name", "reference", "state", "source", "done", "total", "eta", "error")
    return {name: getattr(progress, name) for name in names}


def _format_size(count: int) -> str:
    from workers.profiles.gpu.model_files.downloads import format_bytes

    return format_bytes(count)
