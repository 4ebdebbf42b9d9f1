"""OpenAPI for routes whose bodies are wire values: the published schemas are derived from the values themselves."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from mainspring.domain import answers, wire
from mainspring.domain.goodput import Goodput
from mainspring.domain.team import Team

_REF = "#/components/schemas/{model}"
_KINDS: dict[str, Any] = {
    "Submit": answers.Submit,
    "JobView": answers.JobView,
    "Why": answers.Why,
    "Event": answers.Event,
    "Goodput": Goodput,
    "GoodputReport": answers.GoodputReport,
    "ClusterView": answers.ClusterView,
    "Team": Team,
    "TeamView": answers.TeamView,
    "PlanView": answers.PlanView,
    "WhatIf": answers.WhatIf,
    "WhatIfAnswer": answers.WhatIfAnswer,
    "ArrivalView": answers.ArrivalView,
    "Register": wire.Register,
    "Orders": wire.Orders,
    "Heartbeat": wire.Heartbeat,
    "HeartbeatReply": wire.HeartbeatReply,
    "Problem": answers.Problem,
}
_PROBLEMS = {
    400: "The request cannot be accepted as it is",
    401: "No token, or one that nobody holds",
    403: "The token is too weak",
    404: "Nothing answers to that name",
    409: "It exists already, or has moved on",
    503: "Something behind the controller does not answer",
    507: "No room is left for the store",
}


def documented(*, answer: type, body: type | None = None, many: bool = False) -> dict[str, Any]:
    """Returns what a route publishes of itself, as keyword arguments of FastAPI's decorators.

    Args:
        answer: The wire value it answers with.
        body: The wire value it reads.
        many: Whether it answers with a list of them.
    """
    shown: dict[str, Any] = _ref(answer)
    content = {"application/json": {"schema": {"type": "array", "items": shown} if many else shown}}
    said: dict[str, Any] = {"responses": {200: {"description": "Done", "content": content}} | problems()}
    if body is not None:
        request = {"required": True, "content": {"application/json": {"schema": _ref(body)}}}
        said["openapi_extra"] = {"requestBody": request}
    return said


def problems() -> dict[int | str, dict[str, Any]]:
    """Returns how every route fails."""
    content = {"application/json": {"schema": _ref(answers.Problem)}}
    return {status: {"description": words, "content": content} for status, words in _PROBLEMS.items()}


def publish(app: FastAPI) -> None:
    """Makes the app's OpenAPI document hold the schemas of all wire values that its routes name.

    Args:
        app: The application, all routes in place.
    """

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            adapters = [(name, "validation", TypeAdapter(kind)) for name, kind in _KINDS.items()]
            shown, schemas = TypeAdapter.json_schemas(adapters, ref_template=_REF)  # type: ignore[arg-type]
            components = made.setdefault("components", {})
            components["schemas"] = {name: shown[name, "validation"] for name in _KINDS} | schemas["$defs"]
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _ref(kind: type) -> dict[str, Any]:
    name = next(name for name, known in _KINDS.items() if known is kind)
    return {"$ref": _REF.format(model=name)}
