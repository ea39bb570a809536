"""The known providers of model APIs, and the defaults that `provider = "mistral"` sets in a seat's table.

The values come from each vendor's own API reference.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from gridq.errors import ConfigError

ApiName = Literal["openai", "anthropic", "google"]


@dataclass(frozen=True)
class Provider:
    """A provider of a model API.

    `url` is None if every operator has an address of their own, which the seats file must name. `keys` are
    the environment variables of the key; the first one that is set is used. `price_list_id` is the id in the
    price list, None if the provider does not charge by the token. `states_cost` is true if each answer states
    its cost. `key_header` is the header of the key, if not that of the API format. `lists_models` is false if
    there is no list of models to ask for. `rejects_usage_option` is true if streams state their usage unasked
    and asking is an error. `has_responses` is true if the vendor has OpenAI's Responses at the same URL.
    """

    name: str
    url: str | None
    api: ApiName = "openai"
    keys: tuple[str, ...] = ()
    price_list_id: str | None = None
    states_cost: bool = False
    key_header: str | None = None
    lists_models: bool = True
    rejects_usage_option: bool = False
    has_responses: bool = False


PROVIDERS = {
    each.name: each
    for each in (
        Provider(
            "anthropic", "https://api.anthropic.com/v1", "anthropic", ("ANTHROPIC_API_KEY",), "anthropic"
        ),
        Provider(
            "openai",
            "https://api.openai.com/v1",
            keys=("OPENAI_API_KEY",),
            price_list_id="openai",
            has_responses=True,
        ),
        Provider(
            "mistral",
            "https://api.mistral.ai/v1",
            keys=("MISTRAL_API_KEY",),
            price_list_id="mistral",
            rejects_usage_option=True,
        ),
        Provider(
            "google",
            "https://generativelanguage.googleapis.com/v1beta",
            "google",
            ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
            "google",
        ),
        # its address contains the project and the region, its key is a token that lasts about an hour
        Provider("vertex", None, "google", ("VERTEX_AI_TOKEN",), "google", lists_models=False),
        # its Responses reject hints that chats may leave out, such as prompt_cache_key
        Provider("groq", "https://api.groq.com/openai/v1", keys=("GROQ_API_KEY",), price_list_id="groq"),
        Provider(
            "openrouter",
            "https://openrouter.ai/api/v1",
            keys=("OPENROUTER_API_KEY",),
            price_list_id="openrouter",
            states_cost=True,
            has_responses=True,
        ),
        Provider(
            "azure",
            None,
            keys=("AZURE_OPENAI_API_KEY",),
            price_list_id="azure",
            key_header="api-key",
            lists_models=False,
        ),
        Provider(
            "deepseek", "https://api.deepseek.com/v1", keys=("DEEPSEEK_API_KEY",), price_list_id="deepseek"
        ),
        Provider(
            "together", "https://api.together.ai/v1", keys=("TOGETHER_API_KEY",), price_list_id="together"
        ),
        Provider(
            "fireworks",
            "https://api.fireworks.ai/inference/v1",
            keys=("FIREWORKS_API_KEY",),
            price_list_id="fireworks",
            has_responses=True,
        ),
        Provider(
            "xai",
            "https://api.x.ai/v1",
            keys=("XAI_API_KEY",),
            price_list_id="x-ai",
            has_responses=True,
        ),
        Provider(
            "cerebras", "https://api.cerebras.ai/v1", keys=("CEREBRAS_API_KEY",), price_list_id="cerebras"
        ),
        Provider("vllm", None),
        Provider("ollama", None),
        Provider("lmstudio", None),
    )
}


AZURE_HOSTS = (".openai.azure.com", ".services.ai.azure.com")
AZURE_RESPONSES_PATH = "/openai/v1"
"""The path of Azure's v1 API, which has Responses; the older URLs of single deployments have not."""


def has_responses(url: str) -> bool:
    """Return whether the endpoint at `url` is known to have OpenAI's Responses."""
    parts = urlsplit(url.lower().rstrip("/"))
    if (parts.hostname or "").endswith(AZURE_HOSTS):
        return parts.path == AZURE_RESPONSES_PATH
    own = {provider.url for provider in PROVIDERS.values() if provider.has_responses}
    return f"{parts.scheme}://{parts.netloc}{parts.path}" in own


def find_provider(name: str, path: str) -> Provider:
    """Return the provider `name`. Raises ConfigError at `path` that suggests the closest name."""
    provider = PROVIDERS.get(name)
    if provider is not None:
        return provider
    matches = difflib.get_close_matches(name.lower(), PROVIDERS, 1, 0.5)
    raise ConfigError(
        f"Unknown provider {name!r}",
        {
            "path": path,
            "expected": "one of " + ", ".join(sorted(PROVIDERS)),
            "fix": f'use "{matches[0]}"' if matches else "replace 'provider' by url and api",
        },
    )
