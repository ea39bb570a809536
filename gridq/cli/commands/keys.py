"""Create, list, revoke and rotate API keys, which identify agents: `gridq keys`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gridq.cli.exit_codes import EPILOG, DebugOption, JsonOption
from gridq.cli.grid import open_broker_client
from gridq.cli.inputs import parse_seconds
from gridq.cli.output import format_zone_time, make_console, make_table, print_json

if TYPE_CHECKING:
    from gridq.limits.api_keys import Key

app = typer.Typer()
keys = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Create and revoke API keys.", epilog=EPILOG
)
app.add_typer(keys, name="keys")

MAX_OVERLAP_SECONDS = 366 * 86_400.0

KeyId = Annotated[str, typer.Argument(metavar="KEY_ID", help="Key id, as `gridq keys list` shows it.")]


@keys.command(epilog=EPILOG, short_help="Create a key for an agent.")
def create(
    *,
    agent: Annotated[str, typer.Option("--agent", metavar="NAME", help="Agent that the key identifies.")],
    team: Annotated[str | None, typer.Option("--team", metavar="T", help="Team of the agent.")] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            "--scope",
            metavar="S",
            help="submit, read (own jobs), read-all or operate. Repeatable. Default: submit and read.",
        ),
    ] = None,
    rpm: Annotated[
        int | None, typer.Option("--rpm", metavar="N", help="Maximum requests per minute.")
    ] = None,
    parallel: Annotated[
        int | None, typer.Option("--parallel", metavar="N", help="Maximum concurrent requests.")
    ] = None,
    max_body: Annotated[
        int | None, typer.Option("--max-body", metavar="BYTES", help="Maximum size of a request body.")
    ] = None,
    origin: Annotated[
        list[str] | None,
        typer.Option(
            "--origin", metavar="URL", help="Allow the key only in web pages from this origin. Repeatable."
        ),
    ] = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Create a key for an agent. The key is shown only once; the grid stores a hash of it.

    Once the first key exists, the grid accepts no job without a key. The limits of a key apply across all
    gateways.
    """
    from gridq.config.settings import settings
    from gridq.limits import api_keys

    limits = api_keys.KeyLimits(rpm, parallel, max_body, tuple(dict.fromkeys(origin or ())))
    with open_broker_client(settings()) as client:
        first = not client.redis.exists(client.keys("api_keys"))
        scopes = scope or api_keys.DEFAULT_SCOPES
        key, text = api_keys.create(client.redis, client.keys, agent, team=team, scopes=scopes, limits=limits)
    _print_key(key, text, json)
    if first and not json:
        typer.echo("This is the first key: from now on the grid accepts no job without a key.", err=True)


@keys.command("list", epilog=EPILOG, short_help="List the keys.")
def list_keys(json: JsonOption = False, debug: DebugOption = False) -> None:
    """List all keys, including revoked ones, by their ids. The keys themselves cannot be shown again."""
    from gridq.config.settings import settings
    from gridq.limits import api_keys
    from gridq.store.connection import now_ms

    zone = settings().timezone
    with open_broker_client(settings()) as client:
        now, found = now_ms(client.redis), api_keys.list_keys(client.redis, client.keys)
    if json:
        print_json([_to_json(key) | {"active": key.is_valid(now)} for key in found])
        return
    if not found:
        typer.echo("There are no keys: the grid is single-tenant and accepts every job.", err=True)
        return
    has_limits = any(_format_limits(key) for key in found)  # an empty column would only take up width
    columns = ["id", "agent", "team", "scopes", *(["limits"] if has_limits else []), "created", "state"]
    table = make_table(*columns, keep_first=True, gap=1)
    for key in found:
        ends = format_zone_time(key.expires_at, zone)
        state = "active" if ends is None else f"until {ends}" if key.is_valid(now) else f"ended {ends}"
        created = format_zone_time(key.created, zone) or ""
        limits = [_format_limits(key) or "-"] if has_limits else []
        table.add_row(key.id, key.agent, key.team or "-", ",".join(key.scopes), *limits, created, state)
    make_console().print(table)


@keys.command(epilog=EPILOG, short_help="Revoke a key at once.")
def revoke(
    key_id: KeyId,
    forget: Annotated[
        bool, typer.Option("--forget", help="Delete the record too. Without any key, the grid is open again.")
    ] = False,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Revoke a key at once. Jobs that were admitted with it go on, and its record stays in the list."""
    from gridq.config.settings import settings
    from gridq.limits import api_keys

    with open_broker_client(settings()) as client:
        revoked = api_keys.revoke(client.redis, client.keys, key_id)
        opened = forget and api_keys.forget(client.redis, client.keys, key_id)
    if json:
        print_json(_to_json(revoked) | {"forgotten": forget})
        return
    typer.echo(f"The key {revoked.id} of {revoked.agent} is revoked.", err=True)
    if opened:
        typer.echo("No key is left: the grid is single-tenant and accepts every job.", err=True)


@keys.command(epilog=EPILOG, short_help="Replace a key with a new one.")
def rotate(
    key_id: KeyId,
    overlap: Annotated[
        str,
        typer.Option(
            "--overlap", metavar="TIME", help="How long the old key stays valid, such as 30m or 2d."
        ),
    ] = "0",
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Create a new key with the same agent, team, scopes and limits, and end the old key.

    The new key is shown only once.
    """
    from gridq.config.settings import settings
    from gridq.limits import api_keys

    seconds = parse_seconds(overlap, "--overlap", 0, MAX_OVERLAP_SECONDS)
    with open_broker_client(settings()) as client:
        key, text = api_keys.rotate(client.redis, client.keys, key_id, seconds)
    _print_key(key, text, json)


def _print_key(key: Key, text: str, json: bool) -> None:
    """Print the key alone on stdout, so that a script can read it, and the words about it on stderr."""
    if json:
        print_json(_to_json(key) | {"key": text})
        return
    typer.echo(text)
    where = f" in the team {key.team}" if key.team else ""
    typer.echo(f"Key {key.id} of the agent {key.agent}{where}. It is not shown again.", err=True)


def _format_limits(key: Key) -> str:
    """Format the limits of a key: `60/min, 4 at once`."""
    limits = key.limits
    words = [
        f"{limits.rpm}/min" if limits.rpm else "",
        f"{limits.parallel} at once" if limits.parallel else "",
        f"{limits.max_body} B" if limits.max_body else "",
        *limits.origins,
    ]
    return ", ".join(word for word in words if word)


def _to_json(key: Key) -> dict[str, Any]:
    """Return what may be shown of a key, as JSON. Times are in seconds since 1970, by the server's clock."""
    return {
        "id": key.id,
        "agent": key.agent,
        "team": key.team,
        "scopes": list(key.scopes),
        "created_at": key.created / 1000,
        "expires_at": None if key.expires_at is None else key.expires_at / 1000,
        "limits": key.limits.dump(),
    }
