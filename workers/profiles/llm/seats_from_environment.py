"""The llm seats that the environment names: a key that is set is a seat, unless it is to be left out.

| seat | its key | where else |
|---|---|---|
| `anthropic` | ANTHROPIC_API_KEY | ANTHROPIC_BASE_URL |
| `openai` | OPENAI_API_KEY | OPENAI_BASE_URL |
| `mistral` | MISTRAL_API_KEY | MISTRAL_BASE_URL |
| `google` | GEMINI_API_KEY or GOOGLE_API_KEY | GEMINI_BASE_URL |
| `vertex` | VERTEX_AI_TOKEN or VERTEX_AI_TOKEN_FILE, with VERTEX_AI_PROJECT | VERTEX_AI_LOCATION |

`<NAME>_MODEL` names the models, else the endpoint is asked for them; `GRIDQ_SKIP_<NAME>=1` leaves a seat out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from pydantic import ValidationError

from workers.profiles.llm.capability import DeclaredModel, LlmSeat
from workers.profiles.llm.credentials import login_of
from workers.profiles.llm.locality import on_this_machine
from workers.profiles.llm.providers import PROVIDERS

NO = frozenset({"", "0", "false", "no", "off"})
VERTEX_LOCATION = "us-central1"


@dataclass(frozen=True)
class Named:
    """A provider whose seat the environment can name, and what its variables begin with."""

    provider: str
    prefixes: tuple[str, ...]


NAMED = (
    Named("anthropic", ("ANTHROPIC",)),
    Named("openai", ("OPENAI",)),
    Named("mistral", ("MISTRAL",)),
    Named("google", ("GEMINI", "GOOGLE")),
    Named("vertex", ("VERTEX_AI", "VERTEX")),
)


class NotUsable(ValueError):
    """What the environment says is no seat; why, in words."""


def seats(
    configured: Sequence[LlmSeat], environ: Mapping[str, str], missing: list[str], *, others: bool = False
) -> list[LlmSeat]:
    """The seats of the environment whose keys and names no seat of the file uses; `missing` gets a sentence
    for what is not usable or left out, and one for the keys that are not set. `others`: the file has seats of
    another sort.
    """
    found: list[LlmSeat] = []
    unset: list[str] = []
    used = {login_of(seat, environ) for seat in configured}
    for each in NAMED:
        keys = key_variables(each.provider)
        switch = next((f"GRIDQ_SKIP_{prefix}" for prefix in each.prefixes if _skips(environ, prefix)), None)
        if any(seat.name == each.provider or seat.key_env in keys for seat in configured):
            continue
        if switch is not None:
            missing.append(f"{each.provider}: left out, as {switch} says")
        elif not any(_told(environ, key) for key in keys):
            unset.append(" or ".join(keys))
        else:
            try:
                seat = _seat(each, environ)
                if login_of(seat, environ) not in used:  # a table may have the key from another variable
                    found.append(seat)
            except NotUsable as why:
                missing.append(f"{each.provider}: {why}: no seat from the environment")
    if unset and (configured or found or others):
        missing.append("Not set in the environment: " + ", ".join(unset))
    elif unset:
        missing.append("No [[llm]] seat is configured and none of these is set: " + ", ".join(unset))
    return found


def key_variables(provider: str) -> tuple[str, ...]:
    """The variables that name a seat of `provider` by being set."""
    return ("VERTEX_AI_PROJECT",) if provider == "vertex" else PROVIDERS[provider].keys


def _seat(named: Named, environ: Mapping[str, str]) -> LlmSeat:
    provider = PROVIDERS[named.provider]
    bases = (f"{prefix}_BASE_URL" for prefix in named.prefixes)
    base = next((name for name in bases if _told(environ, name)), "")
    url = _told(environ, base)
    key: dict[str, str] = {}
    if named.provider == "vertex":
        url = url or vertex_url(_told(environ, "VERTEX_AI_PROJECT"), _told(environ, "VERTEX_AI_LOCATION"))
        key = _vertex_key(environ)
    else:
        key["key_env"] = next(name for name in provider.keys if _told(environ, name))
        url = url or provider.url or ""
    if named.provider == "anthropic" and not urlsplit(url).path.strip("/"):
        url = url.rstrip("/") + "/v1"  # its vendor's own programs take the address without
    if on_this_machine(url):
        raise NotUsable(f"{base} is on this machine, where models belong to the gpu profile")
    names = [name for p in named.prefixes for name in _told(environ, f"{p}_MODEL").replace(",", " ").split()]
    if not names and not provider.lists:
        raise NotUsable(f"it lists no models, so {named.prefixes[0]}_MODEL must name them")
    try:
        models = tuple(DeclaredModel(name=name) for name in names)
        return LlmSeat(
            name=named.provider, provider=named.provider, url=url, api=provider.api, models=models, **key
        )
    except ValidationError:
        raise NotUsable(f"{base or 'its address'} or {named.prefixes[0]}_MODEL is not usable") from None


def vertex_url(project: str, location: str = "") -> str:
    """Where Vertex AI serves Google's models for a project in a location; `global` has no region's host."""
    location = location or VERTEX_LOCATION
    host = "aiplatform.googleapis.com" if location == "global" else f"{location}-aiplatform.googleapis.com"
    return f"https://{host}/v1/projects/{project}/locations/{location}/publishers/google"


def _vertex_key(environ: Mapping[str, str]) -> dict[str, str]:
    if _told(environ, "VERTEX_AI_TOKEN"):
        return {"key_env": "VERTEX_AI_TOKEN"}
    path = _told(environ, "VERTEX_AI_TOKEN_FILE")
    if not path:
        raise NotUsable(
            "VERTEX_AI_PROJECT is set, but neither VERTEX_AI_TOKEN nor VERTEX_AI_TOKEN_FILE, a file in which "
            "what `gcloud auth print-access-token` prints is kept fresh"
        )
    return {"key_file": path}


def _skips(environ: Mapping[str, str], prefix: str) -> bool:
    return _told(environ, f"GRIDQ_SKIP_{prefix}").lower() not in NO


def _told(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name, "").strip()
