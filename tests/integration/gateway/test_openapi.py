"""Responses to generated requests conform to the OpenAPI document: no 500, no other status or schema."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from gridq.config.settings import Settings
from gridq.gateway.app import create_app
from gridq.gateway.options import GatewayOptions
from tests.gateways import Benches, benches
from workers.supervisor.embedded_server import EmbeddedServer

DOCUMENT = create_app(Settings(), GatewayOptions()).openapi()
OPERATIONS = [(path, method) for path, found in DOCUMENT["paths"].items() for method in found]

CHECKS = [
    not_a_server_error,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
]

EXAMPLES = 8

NOTHING_TO_GET_WRONG = ("/health", "/ready")
"""Routes without a key, a parameter or a body."""


@pytest.fixture(scope="module")
def place(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Benches]:
    with benches(server, tmp_path_factory.mktemp("home"), admission_wait=0.0, keep_alive=0.2) as started:
        yield started


def test_every_route_is_described() -> None:
    for path, method in OPERATIONS:
        operation = DOCUMENT["paths"][path][method]
        assert operation.get("summary"), path
        assert operation.get("description"), path
        assert operation["tags"][0] in {tag["name"] for tag in DOCUMENT["tags"]}, path
        assert "422" not in operation["responses"], path
        if "requestBody" in operation:
            [content] = operation["requestBody"]["content"].values()
            schema = content["schema"]
            if "$ref" in schema:
                schema = DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
            assert schema.get("examples") or schema.get("example"), path
    assert set(DOCUMENT["components"]["securitySchemes"]) == {"bearer", "key", "secret"}


def strategy(operation: Any, mode: GenerationMode) -> st.SearchStrategy[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: st.SearchStrategy[Any] = operation.as_strategy(generation_mode=mode)
    return found


CASES = [
    pytest.param(path, method, mode, id=f"{method} {path} {mode.value}")
    for path, method in OPERATIONS
    for mode in GenerationMode
    if mode is GenerationMode.POSITIVE or path not in NOTHING_TO_GET_WRONG
]


@pytest.mark.parametrize(("path", "method", "mode"), CASES)
def test_the_document_holds(place: Benches, path: str, method: str, mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_dict(DOCUMENT)
    schema.config.update(base_url=place.gateway.url)
    operation = schema[path][method.upper()]

    @given(case=strategy(operation, mode))
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def holds(case: Any) -> None:
        response = case.call(timeout=20)
        checks = list(CHECKS)
        if mode is GenerationMode.NEGATIVE and "requestBody" in DOCUMENT["paths"][path][method]:
            checks.append(negative_data_rejection)  # of a query every text may be a name
        if response.status_code == 503:  # no seat serves it
            checks = [check for check in checks if check is not not_a_server_error]
        case.validate_response(response, checks=checks)

    holds()
