"""Routes that call their endpoint directly."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI, Request
from starlette.responses import JSONResponse, Response
from starlette.testclient import TestClient

from gridq.errors import InvalidField
from gridq.gateway.http import errors
from gridq.gateway.routes.model_api import DirectRoute

router = APIRouter(route_class=DirectRoute)


@router.post("/v1/whole")
async def read_whole(request: Request) -> Response:
    body = await request.json()
    if "bad" in body:
        raise InvalidField("`bad` is not a field", {"path": "bad"})
    return JSONResponse(body)


@router.get("/v1/named/{name:path}")
async def read_named(request: Request, name: str, many: int = 1) -> Response:
    return JSONResponse([request.url.path, name, many])


def make_client() -> TestClient:
    app = FastAPI()
    app.include_router(router)
    errors.install(app)
    return TestClient(app)


def test_an_endpoint_of_a_request_alone_gets_it_as_it_came() -> None:
    client = make_client()
    assert client.post("/v1/whole", json={"any": 1}).json() == {"any": 1}
    refused = client.post("/v1/whole", json={"bad": 1})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "bad"
    assert client.get("/v1/whole").status_code == 405


def test_an_endpoint_with_parameters_has_them_read() -> None:
    assert make_client().get("/v1/named/a/b?many=2").json() == ["/v1/named/a/b", "a/b", 2]


def test_both_are_in_the_openapi_document() -> None:
    assert {"/v1/whole", "/v1/named/{name}"} <= make_client().get("/openapi.json").json()["paths"].keys()
