"""Routes that call their endpoint directly."""

from __future__ import annotations

from fastapi import APIRouter, Depends, FastAPI, Request
from redis.exceptions import ConnectionError
from starlette.responses import JSONResponse, Response
from starlette.testclient import TestClient

from gridq.config.settings import Settings
from gridq.errors import InvalidField, KeyScopeMissing
from gridq.gateway.http import direct_routes, middleware
from gridq.gateway.metrics import request_metrics
from gridq.gateway.options import GatewayOptions

router = APIRouter()


@router.post("/v1/whole")
async def read_whole(request: Request) -> Response:
    body = await request.json()
    if "bad" in body:
        raise InvalidField("`bad` is not a field", {"path": "bad"})
    if "away" in body:
        raise ConnectionError("Connection refused")
    if "fault" in body:
        raise ZeroDivisionError
    return JSONResponse(body)


@router.get("/v1/named/{name:path}")
async def read_named(request: Request, name: str, many: int = 1) -> Response:
    return JSONResponse([request.url.path, name, many])


def refuse() -> None:
    raise KeyScopeMissing("The key lacks a scope")


@router.post("/v1/guarded", dependencies=[Depends(refuse)])
async def read_guarded(request: Request) -> Response:
    return JSONResponse("secret")


def make_client() -> TestClient:
    async def read_key_origins() -> frozenset[str]:
        return frozenset()

    async def read_server_limit() -> None:
        return None

    app = FastAPI()
    app.include_router(router)
    direct_routes.install(app, [router])
    middleware.install(app, Settings(), GatewayOptions(), read_key_origins, read_server_limit)
    return TestClient(app, raise_server_exceptions=False)


def test_an_endpoint_of_a_request_alone_gets_it_as_it_came() -> None:
    client = make_client()
    assert client.post("/v1/whole", json={"any": 1}).json() == {"any": 1}
    refused = client.post("/v1/whole", json={"bad": 1})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "bad"
    assert client.get("/v1/whole").status_code == 405


def test_its_errors_are_those_of_every_route() -> None:
    client = make_client()
    away = client.post("/v1/whole", json={"away": 1})
    assert (away.status_code, away.json()["error"]["code"]) == (503, "broker.unreachable")
    fault = client.post("/v1/whole", json={"fault": 1})
    assert (fault.status_code, fault.json()["error"]["code"]) == (500, "gateway.internal")
    assert "ZeroDivision" not in fault.text


def test_the_metrics_know_its_route() -> None:
    app = make_client().app
    request_metrics.install(app)
    client = TestClient(app)
    client.post("/v1/whole", json={})
    client.get("/v1/named/a")
    assert [route for _, route, _ in app.state.request_metrics.requests] == [
        "/v1/whole",
        "/v1/named/{name:path}",
    ]


def test_an_endpoint_with_parameters_has_them_read() -> None:
    assert make_client().get("/v1/named/a/b?many=2").json() == ["/v1/named/a/b", "a/b", 2]


def test_a_dependency_of_an_endpoint_is_called() -> None:
    refused = make_client().post("/v1/guarded", json={})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "auth.scope")


def test_both_are_in_the_openapi_document() -> None:
    assert {"/v1/whole", "/v1/named/{name}"} <= make_client().get("/openapi.json").json()["paths"].keys()
