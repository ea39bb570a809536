"""HTTP itself, without the grid: connections, bounds, CORS, bodies, options, schemas, errors, OpenAPI.

In: bytes and headers from a client.
Out: a checked request, or an error response in the format of the path's API.
Imported by: app, auth, grid, routes.
"""

__all__ = [
    "bounds",
    "connections",
    "conversation",
    "cors",
    "direct_routes",
    "disconnect",
    "errors",
    "middleware",
    "openapi",
    "request_body",
    "request_options",
    "schemas",
]
