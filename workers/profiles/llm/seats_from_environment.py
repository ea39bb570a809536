"""Read llm seats from the environment: each key that is set makes a seat, unless it is skipped.

| seat | key | address |
|---|---|---|
| `anthropic` | ANTHROPIC_API_KEY | ANTHROPIC_BASE_URL |
| `openai` | OPENAI_API_KEY | OPENAI_BASE_URL |
| `mistral` | MISTRAL_API_KEY | MISTRAL_BASE_URL |
| `google` | GEMINI_API_KEY or GOOGLE_API_KEY | GEMINI_BASE_URL |
| `vertex` | VERTEX_AI_TOKEN or VERTEX_AI_TOKEN_FILE, with VERTEX_AI_PROJECT | VERTEX_AI_LOCATION |

`<NAME>_MODEL` names the models, else gridq asks the endpoint for them. `GRIDQ_SKIP_<NAME>=1` skips a seat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from pydantic import ValidationError

from workers.model_apis.http.locality import is_local_url
from workers.profiles.llm.capability import DeclaredModel, LlmSeat
from workers.profiles.llm.credentials import identify_login
from workers.profiles.llm.providers import PROVIDERS

FALSE_VALUES = frozenset({"", "0", "false", "no", "off"})
VERTEX_LOCATION = "us-central1"


VARIABLE_PREFIXES = {
    "anthropic": ("ANTHROPIC",),
    "openai": ("OPENAI",),
    "mistral": ("MISTRAL",),
    "google": ("GEMINI", "GOOGLE"),
    "vertex": ("VERTEX_AI", "VERTEX"),
}
"""The providers that the environment can declare, and the prefixes of their variables."""


class UnusableSeat(ValueError):
    """The environment declares a seat that cannot work. Its message is the reason."""


def read_seats(
    configured: Sequence[LlmSeat],
    environ: Mapping[str, str],
    missing: list[str],
    *,
    has_programs: bool = False,
) -> list[LlmSeat]:
    """Return the seats of the environment whose keys and names no seat of the file uses.

    Adds to `missing` a sentence for each seat that cannot work or is skipped, and one for the keys that are
    not set. `configured` are the endpoints of the seats file. `has_programs` is true if it has programs, too.
    """
    found: list[LlmSeat] = []
    unset: list[str] = []
    used = {identify_login(seat, environ) for seat in configured}
    for provider, prefixes in VARIABLE_PREFIXES.items():
        keys = list_key_variables(provider)
        skip_variable = next(
            (f"GRIDQ_SKIP_{prefix}" for prefix in prefixes if _is_skipped(environ, prefix)), None
        )
        if any(seat.name == provider or seat.key_env in keys for seat in configured):
            continue
        if skip_variable is not None:
            missing.append(f"{provider}: skipped because {skip_variable} is set")
        elif not any(_get_variable(environ, key) for key in keys):
            unset.append(" or ".join(keys))
        else:
            try:
                seat = _make_seat(provider, environ)
                if (
                    identify_login(seat, environ) not in used
                ):  # a table may read the same key from another variable
                    found.append(seat)
            except UnusableSeat as error:
                missing.append(f"{provider}: no seat from the environment: {error}")
    if unset and (configured or found or has_programs):
        missing.append("Not set in the environment: " + ", ".join(unset))
    elif unset:
        missing.append(
            "No [[llm]] seat is configured, and none of these variables is set: " + ", ".join(unset)
        )
    return found


def list_key_variables(provider: str) -> tuple[str, ...]:
    """Return the variables that declare a seat of `provider` if they are set."""
    return ("VERTEX_AI_PROJECT",) if provider == "vertex" else PROVIDERS[provider].keys


def _make_seat(name: str, environ: Mapping[str, str]) -> LlmSeat:
    provider, prefixes = PROVIDERS[name], VARIABLE_PREFIXES[name]
    bases = (f"{prefix}_BASE_URL" for prefix in prefixes)
    base = next((each for each in bases if _get_variable(environ, each)), "")
    url = _get_variable(environ, base)
    key: dict[str, str] = {}
    if name == "vertex":
        url = url or make_vertex_url(
            _get_variable(environ, "VERTEX_AI_PROJECT"), _get_variable(environ, "VERTEX_AI_LOCATION")
        )
        key = _find_vertex_key(environ)
    else:
        key["key_env"] = next(each for each in provider.keys if _get_variable(environ, each))
        url = url or provider.url or ""
    if name == "anthropic" and not urlsplit(url).path.strip("/"):
        url = url.rstrip("/") + "/v1"  # the vendor's own programs take the address without it
    if is_local_url(url):
        raise UnusableSeat(f"{base} points to this machine, whose models belong to the gpu profile")
    texts = (_get_variable(environ, f"{prefix}_MODEL") for prefix in prefixes)
    names = [model for text in texts for model in text.replace(",", " ").split()]
    if not names and not provider.lists_models:
        raise UnusableSeat(f"its endpoint lists no models; name them in {prefixes[0]}_MODEL")
    try:
        models = tuple(DeclaredModel(name=model) for model in names)
        return LlmSeat(name=name, provider=name, url=url, api=provider.api, models=models, **key)
    except ValidationError:
        raise UnusableSeat(f"{base or 'its address'} or {prefixes[0]}_MODEL is not valid") from None


def make_vertex_url(project: str, location: str = "") -> str:
    """Return the address of Google's models at Vertex AI. The location `global` has no region in its host."""
    location = location or VERTEX_LOCATION
    host = "aiplatform.googleapis.com" if location == "global" else f"{location}-aiplatform.googleapis.com"
    return f"https://{host}/v1/projects/{project}/locations/{location}/publishers/google"


def _find_vertex_key(environ: Mapping[str, str]) -> dict[str, str]:
    if _get_variable(environ, "VERTEX_AI_TOKEN"):
        return {"key_env": "VERTEX_AI_TOKEN"}
    path = _get_variable(environ, "VERTEX_AI_TOKEN_FILE")
    if not path:
        raise UnusableSeat(
            "VERTEX_AI_PROJECT is set, but neither VERTEX_AI_TOKEN nor VERTEX_AI_TOKEN_FILE is; write the "
            "output of `gcloud auth print-access-token` to that file and keep it fresh"
        )
    return {"key_file": path}


def _is_skipped(environ: Mapping[str, str], prefix: str) -> bool:
    return _get_variable(environ, f"GRIDQ_SKIP_{prefix}").lower() not in FALSE_VALUES


def _get_variable(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name, "").strip()
