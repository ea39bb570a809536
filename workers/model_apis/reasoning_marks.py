"""Mark the reasoning of an endpoint that signs none, so that only this endpoint gets it back.

Messages require a signature of each thinking block. Endpoints of the OpenAI API format send reasoning without
one, in a field of their own, and some want it back in the next request. The grid's mark in the place of the
signature names the field, and the endpoint and model by a hash. No vendor's signature contains a dot.
"""

from __future__ import annotations

from gridq.protocol.models import Json
from workers.model_apis.identity.fitting import hash_to_digits

PREFIX = "gridq."


def make_mark(field: str, origin: str) -> str:
    """Return the mark of reasoning that `origin`, an endpoint with its model, sent in `field`."""
    return f"{PREFIX}{field}.{hash_to_digits(origin, 16)}"


def is_signed(block: dict[str, Json]) -> bool:
    """Return whether a thinking block has a vendor's signature."""
    signature = block.get("signature")
    return isinstance(signature, str) and bool(signature) and not signature.startswith(PREFIX)


def find_field(block: dict[str, Json], origin: str) -> str | None:
    """Return the field in which `origin` sent the reasoning of a thinking block, None if it did not."""
    signature = block.get("signature")
    field = signature[len(PREFIX) :].partition(".")[0] if isinstance(signature, str) else ""
    return field if field and signature == make_mark(field, origin) else None
