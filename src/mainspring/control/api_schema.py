"""OpenAPI for routes whose bodies are wire values: the published schemas are derived from the values themselves."""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Any, get_args, get_origin

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from mainspring.domain import answers
from mainspring.domain.codec import wire_name
from mainspring.domain.routes import ROUTES, Route, Stream

_REF = "#/components/schemas/{model}"
_PROBLEMS = {
    400: "The request cannot be accepted as it is",
    401: "No token, or one that nobody holds",
    403: "The token is too weak",
    404: "Nothing answers to that name",
    409: "It exists already, or has moved on",
    413: "The body is longer than any message may be",
    429: "More at once than one caller's share; a little later it may be",
    503: "Something behind the controller does not answer",
    507: "No room is left for the store",
}


STREAM_TYPE = "text/event-stream"
_FILE: dict[str, Any] = {"application/octet-stream": {}}
_STREAM: dict[str, Any] = {STREAM_TYPE: {}}
_LOGS = {
    "description": "A piece of output; with `follow`, server-sent events `log` and at last `end`",
    "content": _FILE | _STREAM,
    "headers": {"X-Next-Offset": {"schema": {"type": "integer"}}},
}


def documented(route: Route[..., Any]) -> dict[str, Any]:
    """Returns what a route publishes of itself, as keyword arguments of `add_api_route`."""
    if route.signature.return_annotation is answers.Health:
        health = {"content": _shown(answers.Health)}
        return {"responses": {200: {"description": "Done"} | health, 503: {"description": "It cannot"} | health}}
    failures = {"content": {answers.PROBLEM_TYPE: _shown(answers.Problem)["application/json"]}}
    responses: dict[int, Any] = {status: {"description": words} | failures for status, words in _PROBLEMS.items()}
    if route.keyed:
        responses[422] = {"description": "The key was used for another call"} | failures
    said: dict[str, Any] = {"responses": responses}
    answer, body = route.signature.return_annotation, route.signature.parameters.get("body")
    if answer is bytes:
        responses[200] = _LOGS
    elif answer is str:
        responses[200] = {"description": "Samples", "content": {"text/plain": {}}}
    elif answer is None:
        said["status_code"] = 204
    else:
        followed = _STREAM if "follow" in route.query else {}
        responses[200] = {"description": "Done", "content": _shown(answer) | followed}
    if body is not None:
        content = _FILE if body.annotation in (bytes, Stream) else _shown(body.annotation)
        said["openapi_extra"] = {"requestBody": {"required": True, "content": content}}
    return said


def publish(app: FastAPI) -> None:
    """Makes the app's OpenAPI document hold the schemas of all wire values that its routes name.

    Args:
        app: The application, all routes in place.
    """

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            adapters: list[Any] = [(name, "validation", TypeAdapter(kind)) for name, kind in _kinds().items()]
            _, schemas = TypeAdapter.json_schemas(adapters, ref_template=_REF)
            made.setdefault("components", {})["schemas"] = schemas["$defs"]
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _kinds() -> dict[str, type]:
    """Returns the wire values that routes name, by name."""
    named: list[type] = [answers.Problem]
    for route in ROUTES:
        body = route.signature.parameters.get("body")
        kinds = [_item(route.signature.return_annotation)[0], body and body.annotation]
        named += [kind for kind in kinds if isinstance(kind, type) and is_dataclass(kind)]
    return {wire_name(kind): kind for kind in named}


def _item(kind: Any) -> tuple[Any, bool]:
    """Returns what an answer is, or is a list of; and whether it is a list."""
    return (get_args(kind)[0], True) if get_origin(kind) is tuple else (kind, False)


def _shown(kind: Any) -> dict[str, Any]:
    item, many = _item(kind)
    shown: dict[str, Any] = {"$ref": _REF.format(model=wire_name(item))}
    return {"application/json": {"schema": {"type": "array", "items": shown} if many else shown}}
