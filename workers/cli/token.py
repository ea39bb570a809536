"""`gridq token`: tokens with which other machines join the grid."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated
from urllib.parse import urlsplit

import typer

from gridq.cli.exit_codes import EPILOG, DebugOption, JsonOption
from gridq.cli.grid import open_broker_client
from gridq.cli.inputs import parse_seconds
from gridq.cli.output import format_span, make_console, make_table, print_json
from gridq.errors import JoinTokenInvalid

app = typer.Typer()
tokens = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Create, list and revoke join tokens.", epilog=EPILOG
)
app.add_typer(tokens, name="token")


@tokens.command(epilog=EPILOG, short_help="Create a token for another machine.")
def create(
    *,
    ttl: Annotated[str, typer.Option("--ttl", metavar="TIME", help="Validity: 30m, 1h, 2d.")] = "1h",
    uses: Annotated[
        int, typer.Option("--uses", min=1, max=10_000, help="Number of machines that may use it.")
    ] = 1,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Create a token with which another machine can join this grid.

    The token holds the server's password and is shown only once. The server keeps a hash of its secret.
    """
    from gridq.config.settings import settings
    from gridq.store.connection import redact_url
    from workers.machine import join_tokens as store

    seconds = parse_seconds(ttl, "--ttl", 1, store.MAX_TTL_SECONDS)
    with open_broker_client(settings()) as client:
        text, record = store.create(client.redis, client.keys, client.url, ttl=seconds, uses=uses)
    if json:
        print_json({**asdict(record), "token": text, "url": redact_url(client.url)})
        return
    typer.echo(text)
    many = "one machine" if uses == 1 else f"{uses} machines"
    typer.echo(f"Token {record.id} is valid for {ttl} and {many}. It is not shown again.", err=True)
    typer.echo(f"On the other machine: gridq join {redact_url(client.url)} --token @FILE", err=True)
    if urlsplit(client.url).hostname in ("127.0.0.1", "::1", "localhost"):
        port = urlsplit(client.url).port
        typer.echo(
            "This server listens only on this machine. Another host needs a tunnel, such as "
            f"ssh -N -L {port}:127.0.0.1:{port} THIS-HOST",
            err=True,
        )


@tokens.command("list", epilog=EPILOG, short_help="List the tokens that have not expired.")
def listing(json: JsonOption = False, debug: DebugOption = False) -> None:
    """List the tokens that have not expired, by their ids. The tokens themselves cannot be shown again."""
    import time

    from gridq.config.settings import settings
    from workers.machine import join_tokens as store

    with open_broker_client(settings()) as client:
        found = store.list_tokens(client.redis, client.keys)
    if json:
        print_json([asdict(record) for record in found])
        return
    if not found:
        typer.echo("There are no join tokens. To create one: gridq token create", err=True)
        return
    table = make_table("token", "used", "state", "expires in", numbers=("used", "expires in"))
    for record in found:
        state = "valid" if record.left else "used up"
        left = format_span(record.expires_at - time.time())
        table.add_row(record.id, f"{record.uses - record.left}/{record.uses}", state, left)
    make_console().print(table)


@tokens.command(epilog=EPILOG, short_help="Revoke a token.")
def revoke(
    token_id: Annotated[
        str,
        typer.Argument(metavar="TOKEN_ID", help="The token's id, as `list` shows it.", show_default=False),
    ],
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Revoke a token. Machines that have joined with it stay in the grid."""
    from gridq.config.settings import settings
    from workers.machine import join_tokens as store

    with open_broker_client(settings()) as client:
        if not store.revoke(client.redis, client.keys, token_id):
            raise JoinTokenInvalid(
                f"There is no join token {token_id!r}",
                {"path": "TOKEN_ID", "expected": "an id that gridq token list shows"},
            )
    if json:
        print_json({"revoked": token_id})
    else:
        typer.echo(f"Revoked {token_id}")
