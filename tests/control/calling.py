"""Calls on the API over HTTP, for tests: an application on a socket, and a client with a token of each role."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
from fastapi import FastAPI

from mainspring.domain import answers
from mainspring.domain.codec import decode, encode
from mainspring.domain.job import JobSpec
from mainspring.domain.release import RELEASE, RELEASE_HEADER
from mainspring.domain.team import TeamRole

if TYPE_CHECKING:
    from tests.control.conftest import World


class Api:
    """A client with a token of each role."""

    def __init__(self, world: World, url: str) -> None:
        self.world = world
        self.http = httpx.Client(base_url=url, trust_env=False, headers={RELEASE_HEADER: RELEASE})
        self.admin, self.member, self.viewer = (
            {"Authorization": f"Bearer {world.token(role)}"}
            for role in (TeamRole.ADMIN, TeamRole.MEMBER, TeamRole.VIEWER)
        )

    def get(self, path: str) -> Any:
        answer = self.http.get(path, headers=self.viewer)
        assert answer.status_code == 200, answer.text
        return answer

    def submit(self, spec: JobSpec, key: str = "") -> answers.JobView:
        answer = self.http.post("/v1/jobs", content=encode(answers.Submit(spec=spec, key=key)), headers=self.member)
        assert answer.status_code == 200, answer.text
        return decode(answers.JobView, answer.content)

    def problem(self, answer: Any, status: int) -> answers.Problem:
        """What an error says; as RFC 9457 wants it, whatever it is."""
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        told = answer.json()
        assert told["status"] == status
        assert told["type"] == f"urn:mainspring:error:{told['error']}"
        assert told["title"]
        assert told["attempted"] in told["detail"]
        return decode(answers.Problem, answer.content)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """An application on a socket."""

    app: FastAPI
    url: str
