"""`gridq keys`: API keys, by which the grid knows its agents."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gridq.cli.exit_codes import EXITS, AsJson, Debug
from gridq.cli.inputs import seconds_of
from gridq.cli.output import console, echo_json, minute, plain_table

if TYPE_CHECKING:
    from redis import Redis

    from gridq.limits.api_keys import Key
    from gridq.store.keys import Keys

app = typer.Typer()
keys = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Make and end API keys.", epilog=EXITS)
app.add_typer(keys, name="keys")

LONGEST_OVERLAP = 366 * 86_400.0

KeyId = Annotated[str, typer.Argument(metavar="KEY_ID", help="The key's id, as `list` shows it.")]


@keys.command(epilog=EXITS, short_help="Make a key for an agent.")
def create(
    *,
    agent: Annotated[str, typer.Option("--agent", metavar="NAME", help="The agent that is known by it.")],
    team: Annotated[str | None, typer.Option("--team", metavar="T", help="The agent's team.")] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            "--scope",
            metavar="S",
            help="submit, read (own jobs), read-all or operate; again for more (default: submit and read).",
        ),
    ] = None,
    rpm: Annotated[int | None, typer.Option("--rpm", metavar="N", help="Requests a minute at most.")] = None,
    parallel: Annotated[
        int | None, typer.Option("--parallel", metavar="N", help="Requests open at once at most.")
    ] = None,
    max_body: Annotated[
        int | None, typer.Option("--max-body", metavar="BYTES", help="The largest body of a request.")
    ] = None,
    origin: Annotated[
        list[str] | None,
        typer.Option("--origin", metavar="URL", help="Only pages of this origin may use it; again for more."),
    ] = None,
    json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Make a key for an agent. It is shown this once: only a hash of it is kept.

    From the first key on, the grid takes no job without one. Its limits are for all gateways together.
    """
    from gridq.limits import api_keys

    limits = api_keys.KeyLimits(rpm, parallel, max_body, tuple(dict.fromkeys(origin or ())))
    with _grid() as (client, names):
        first = not client.exists(names("api_keys"))
        made, text = api_keys.create(
            client, names, agent, team=team, scopes=scope or api_keys.USUAL, limits=limits
        )
    _show_once(made, text, json)
    if first and not json:
        typer.echo("This is the first key: from now on the grid takes no job without one.", err=True)


@keys.command("list", epilog=EXITS, short_help="Show who has which key.")
def listing(json: AsJson = False, debug: Debug = False) -> None:
    """Show every key there is or was, by its id; secrets cannot be shown again."""
    from gridq.config.settings import settings
    from gridq.limits import api_keys
    from gridq.store.connection import now_ms

    zone = settings().timezone
    with _grid() as (client, names):
        now, found = now_ms(client), api_keys.listing(client, names)
    if json:
        echo_json([_public(key) | {"active": key.stands(now)} for key in found])
        return
    if not found:
        typer.echo("There are no keys: the grid is single-tenant and takes every job.", err=True)
        return
    limited = any(_limits(key) for key in found)  # else a column would be empty, and narrow the others
    columns = ["id", "agent", "team", "scopes", *(["limits"] if limited else []), "made", "state"]
    table = plain_table(*columns, named=True, gap=1)
    for key in found:
        ends = minute(key.ends, zone)
        state = "active" if ends is None else f"until {ends}" if key.stands(now) else f"ended {ends}"
        made = minute(key.created, zone) or ""
        limits = [_limits(key) or "-"] if limited else []
        table.add_row(key.id, key.agent, key.team or "-", ",".join(key.scopes), *limits, made, state)
    console().print(table)


@keys.command(epilog=EXITS, short_help="End a key at once.")
def revoke(
    key_id: KeyId,
    forget: Annotated[
        bool, typer.Option("--forget", help="Delete its record too; with the last, the grid is open again.")
    ] = False,
    json: AsJson = False,
    debug: Debug = False,
) -> None:
    """End a key at once. What it has submitted goes on; its record stays in the list."""
    from gridq.limits import api_keys

    with _grid() as (client, names):
        ended = api_keys.revoke(client, names, key_id)
        opened = forget and api_keys.forget(client, names, key_id)
    if json:
        echo_json(_public(ended) | {"forgotten": forget})
        return
    typer.echo(f"The key {ended.id} of {ended.agent} has ended.", err=True)
    if opened:
        typer.echo("No key is left: the grid is single-tenant and takes every job.", err=True)


@keys.command(epilog=EXITS, short_help="Replace a key by a new one.")
def rotate(
    key_id: KeyId,
    overlap: Annotated[
        str, typer.Option("--overlap", metavar="TIME", help="How long the old one is still good: 30m, 2d.")
    ] = "0",
    json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Make a new key for the same agent, team and scopes, shown this once, and end the old one."""
    from gridq.limits import api_keys

    seconds = seconds_of(overlap, "--overlap", 0, LONGEST_OVERLAP)
    with _grid() as (client, names):
        made, text = api_keys.rotate(client, names, key_id, seconds)
    _show_once(made, text, json)


@contextmanager
def _grid() -> Iterator[tuple[Redis, Keys]]:
    """The server's client and the names of its keys; the server's faults are told as gridq's."""
    from gridq.cli.grid import client_of
    from gridq.config.settings import settings
    from gridq.store.connection import translated

    with client_of(settings()) as client, translated(client.url):
        yield client.redis, client.keys


def _show_once(made: Key, text: str, json: bool) -> None:
    """The key alone on stdout, so that a script can take it; the words about it on stderr."""
    if json:
        echo_json(_public(made) | {"key": text})
        return
    typer.echo(text)
    where = f" in the team {made.team}" if made.team else ""
    typer.echo(f"Key {made.id} of the agent {made.agent}{where}. It is not shown again.", err=True)


def _limits(key: Key) -> str:
    """A key's own limits in few words."""
    of = key.limits
    words = [
        f"{of.rpm}/min" if of.rpm else "",
        f"{of.parallel} at once" if of.parallel else "",
        f"{of.max_body} B" if of.max_body else "",
        *of.origins,
    ]
    return ", ".join(word for word in words if word)


def _public(key: Key) -> dict[str, Any]:
    """What may be shown of a key. Times in seconds since 1970 by the server's clock, as everywhere."""
    return {
        "id": key.id,
        "agent": key.agent,
        "team": key.team,
        "scopes": list(key.scopes),
        "created": key.created / 1000,
        "ends": None if key.ends is None else key.ends / 1000,
        "limits": key.limits.dump(),
    }
