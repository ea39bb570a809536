"""Write pieces of one attempt, as the writer of a seat's session does for many at once."""

from __future__ import annotations

from collections.abc import Sequence

from gridq.store.scripts import Pieces, Scripts


def emit(
    scripts: Scripts, lease: str, path: str, pieces: Sequence[str], before: int, dropped: Sequence[str] = ()
) -> bool:
    """Add pieces, as `Pieces` names them, to the job's stream. Return whether the attempt still counts.
    ResponseError: the server refused them.
    """
    [counts] = scripts.emit_all([Pieces(lease, path, before, dropped, pieces)])
    if isinstance(counts, bool):
        return counts
    raise counts
