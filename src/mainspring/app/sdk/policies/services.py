"""Specs of services' replicas: the policy server, what it serves, and on which chips."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mainspring.app.sdk.checkpoints import CheckpointFinder
from mainspring.app.sdk.lab import Lab, job
from mainspring.domain.answers import ReleaseState
from mainspring.domain.answers.policies.releases import artifact_key
from mainspring.domain.errors import Conflict
from mainspring.domain.ids import NAME_LENGTH_MAX
from mainspring.domain.job import LAB, RELEASE_READ, JobSpec, Tier

if TYPE_CHECKING:
    from mainspring.app.base.code import TakenCode

SERVE = ("python", "-m", "mainspring", "serve")


def replica_spec(
    lab: Lab,
    source: str,
    words: Sequence[str] = (),
    *,
    name: str = "",
    on: Sequence[str] = ("cpu",),
    each: Mapping[str, object] | None = None,
    code: Path | None = None,
    on_code: Callable[[TakenCode], object] = lambda taken: None,
    like: JobSpec | None = None,
    team: str = LAB,
    tier: str = Tier.STANDARD.value,
) -> JobSpec:
    """Returns the spec of one replica, for `Lab.serve` and `Lab.update_service`.

    Args:
        lab: Where checkpoints and the working tree go.
        source: What answers: "JOB", "JOB@STEP", "release:NAME", "release:NAME@VERSION" or "MODULE:FUNCTION".
        words: More for the policy server (`python -m mainspring serve --help`).
        name: Of the service; made of the source, when left out.
        on: Acceptable chips, as for `job`.
        each: Any other field of `Option`.
        code: Folder whose working tree it runs in, None for none.
        on_code: Called with what was taken of it.
        like: The spec of a service that is to serve this now; name, chips and all else are its own.
        team: That is charged.
        tier: How urgent it is.

    Raises:
        NotFound: There is no such checkpoint or release.
        Conflict: The release is not published.
    """
    command, reads = [*SERVE, source, "--port", "0", *words], ""
    if source.startswith(RELEASE_READ):
        reads = command[len(SERVE)] = f"{RELEASE_READ}{_released(lab, source.removeprefix(RELEASE_READ))}"
        command += ["--objects", lab.home.objects_url(lab.home.config())]
    if ":" not in source:
        found = CheckpointFinder(lab).steps(source)
        url = lab.home.objects_url(lab.home.config())
        follows = "--follow" in words and "@" not in source
        reads = command[len(SERVE)] = found.job if follows else f"{found.job}@{found.steps[0]}"
        command += ["--objects", url]
    taken = lab.take_code(code, on_code)
    if like is not None:
        role = dataclasses.replace(like.roles[0], command=tuple(command))
        return dataclasses.replace(like, roles=(role, *like.roles[1:]), code=taken, reads=(reads,) if reads else ())
    called = name or re.sub("[^a-z0-9]+", "-", source.lower()).strip("-")[:NAME_LENGTH_MAX]
    spec = job(called, command, on=list(on), each=each, kind="service", team=team, tier=tier)
    return dataclasses.replace(spec, code=taken, reads=(reads,) if reads else ())


def _released(lab: Lab, release: str) -> str:
    """Returns the hash of what a release says, having put that where replicas find it."""
    view = lab.release(release)
    if view.state is not ReleaseState.PUBLISHED:
        step = "ms release sign" if view.state is ReleaseState.PENDING else "serve another"
        raise Conflict("serve a release", on=release, got=view.state.value, wanted="published", next_step=step)
    lab.objects().put_if_absent(artifact_key(view.sha256), view.text.encode())
    return view.sha256
