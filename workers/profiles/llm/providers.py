"""Whose API a seat is at: what `provider = "mistral"` fills in, from each vendor's own API reference.

`environ` says which variables are read where a seat comes from the environment; the first key that is set is
used. A vendor's own address stands in `url`; None: the operator's own, which the seats file must name.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal

from gridq.errors import ConfigError

ApiName = Literal["openai", "anthropic", "google"]


@dataclass(frozen=True)
class Provider:
    """One provider.

    `listed`: its id in the price list, None where it charges nothing by the token. `states_cost`: each answer
    says what it cost. `key_header`: where the key goes, where that is not what its API format says. `lists` False:
    it has no list of models to ask. `usage_unasked`: a stream says what it used without being asked, and
    being asked is an error.
    """

    name: str
    url: str | None
    api: ApiName = "openai"
    keys: tuple[str, ...] = ()
    listed: str | None = None
    states_cost: bool = False
    key_header: str | None = None
    lists: bool = True
    usage_unrequested: bool = False


PROVIDERS = {
    each.name: each
    for each in (
        Provider(
            "anthropic", "https://api.anthropic.com/v1", "anthropic", ("ANTHROPIC_API_KEY",), "anthropic"
        ),
        Provider("openai", "https://api.openai.com/v1", keys=("OPENAI_API_KEY",), listed="openai"),
        Provider(
            "mistral",
            "https://api.mistral.ai/v1",
            keys=("MISTRAL_API_KEY",),
            listed="mistral",
            usage_unrequested=True,
        ),
        Provider(
            "google",
            "https://generativelanguage.googleapis.com/v1beta",
            "google",
            ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
            "google",
        ),
        # its address has the project and the region, its key is a token of an hour or so
        Provider("vertex", None, "google", ("VERTEX_AI_TOKEN",), "google", lists=False),
        Provider("groq", "https://api.groq.com/openai/v1", keys=("GROQ_API_KEY",), listed="groq"),
        Provider(
            "openrouter",
            "https://openrouter.ai/api/v1",
            keys=("OPENROUTER_API_KEY",),
            listed="openrouter",
            states_cost=True,
        ),
        Provider(
            "azure", None, keys=("AZURE_OPENAI_API_KEY",), listed="azure", key_header="api-key", lists=False
        ),
        Provider("deepseek", "https://api.deepseek.com/v1", keys=("DEEPSEEK_API_KEY",), listed="deepseek"),
        Provider("together", "https://api.together.ai/v1", keys=("TOGETHER_API_KEY",), listed="together"),
        Provider(
            "fireworks",
            "https://api.fireworks.ai/inference/v1",
            keys=("FIREWORKS_API_KEY",),
            listed="fireworks",
        ),
        Provider("xai", "https://api.x.ai/v1", keys=("XAI_API_KEY",), listed="x-ai"),
        Provider("cerebras", "https://api.cerebras.ai/v1", keys=("CEREBRAS_API_KEY",), listed="cerebras"),
        Provider("vllm", None),
        Provider("ollama", None),
        Provider("lmstudio", None),
    )
}


def provider_of(name: str, path: str) -> Provider:
    """The provider called `name`; ConfigError with the nearest name where there is none, at `path`."""
    found = PROVIDERS.get(name)
    if found is not None:
        return found
    near = difflib.get_close_matches(name.lower(), PROVIDERS, 1, 0.5)
    raise ConfigError(
        f"There is no provider {name!r}",
        {
            "path": path,
            "expected": "one of " + ", ".join(sorted(PROVIDERS)),
            "fix": f'write "{near[0]}"' if near else "leave 'provider' out, and give url and API format",
        },
    )
