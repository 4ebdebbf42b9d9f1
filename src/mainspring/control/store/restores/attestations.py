"""Attestations: what a store that went back in time must know of an allocation to have it again, signed by our key.

An attestation goes to the engine with the order, which keeps it until the allocation is over. In it are rows: the
allocation's, its attempt's, its job's with the spec; neither a token nor a secret's value.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import sqlalchemy as sa

from mainspring.control.store.records import chunks, specs
from mainspring.control.store.rows import RowMapping, text_of
from mainspring.control.store.schema import allocations, attempts, jobs
from mainspring.domain.codec import decode, encode
from mainspring.domain.errors import InvalidMessage, NotAllowed
from mainspring.domain.ids import AllocationId, AttemptId, ChipName, ClusterName, JobId, TeamName
from mainspring.domain.job import Overrides
from mainspring.domain.plan import Grant

ATTESTATION_BYTES_MAX = 1 << 20  # As large as a spec may be; nearly all are a few KB.


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAttested:
    """A job as it was submitted, and what was said of it until the launch; of an array's, `spec` is the array's."""

    id: JobId
    name: str
    team: TeamName
    spec: str
    submit_key: str | None
    submitted_s: float
    owner: str
    overrides: Overrides | None
    array_index: int | None
    array_count: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptAttested:
    """An attempt as it was granted."""

    id: AttemptId
    job: JobId
    number: int
    cluster: ClusterName
    simulated: bool
    plan: int
    granted_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationAttested:
    """An allocation as it was granted."""

    id: AllocationId
    attempt: AttemptId
    place: int
    cluster: ClusterName
    part: Grant
    agent_first: int
    rank_first: int
    nodes: int
    chips: Mapping[ChipName, int]
    dollars_per_hour: float
    granted_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Attestation:
    """What is attested of one allocation."""

    allocation: AllocationAttested
    attempt: AttemptAttested
    job: JobAttested


JOBS_ATTESTED = RowMapping(JobAttested, jobs)
ATTEMPTS_ATTESTED = RowMapping(AttemptAttested, attempts)
ALLOCATIONS_ATTESTED = RowMapping(AllocationAttested, allocations)


def attest(connection: sa.Connection, wanted: Collection[AllocationId], key: str) -> Mapping[AllocationId, str]:
    """Returns the attestations of some allocations, "" for one that would be too long.

    Args:
        wanted: Allocations that the store knows.
        key: The controller's own secret.
    """
    own = [
        one
        for some in chunks(wanted)
        for one in ALLOCATIONS_ATTESTED.read(connection, ALLOCATIONS_ATTESTED.select.where(allocations.c.id.in_(some)))
    ]
    of_attempt = {
        one.id: one
        for some in chunks(dict.fromkeys(one.attempt for one in own))
        for one in ATTEMPTS_ATTESTED.read(connection, ATTEMPTS_ATTESTED.select.where(attempts.c.id.in_(some)))
    }
    of_job = {
        one.id: one
        for some in chunks(dict.fromkeys(one.job for one in of_attempt.values()))
        for one in JOBS_ATTESTED.read(connection, JOBS_ATTESTED.select.where(jobs.c.id.in_(some)))
    }
    bare = [job for job, one in of_job.items() if not one.spec]  # Of an array only the first job's row has it.
    of_job |= {job: replace(of_job[job], spec=text_of(spec)) for job, spec in specs(connection, bare).items()}
    signed = {}
    for one in own:
        attempt = of_attempt[one.attempt]
        signed[one.id] = _sign(Attestation(allocation=one, attempt=attempt, job=of_job[attempt.job]), key)
    return signed


def read_attestation(text: str, key: str) -> Attestation:
    """Returns what an engine kept.

    Args:
        text: As it was given.
        key: The controller's own secret.

    Raises:
        NotAllowed: Another key signed it, or it is not as it was signed.
        InvalidMessage: This release cannot read it.
    """
    signature, _, packed = text.partition(".")
    if not hmac.compare_digest(signature.encode(), _signature(packed, key).encode()):
        got = "an attestation that this lab's key did not sign"
        raise NotAllowed("adopt what is held", got=got, next_step="ms restore --end")
    try:
        return decode(Attestation, zlib.decompress(base64.b64decode(packed)))
    except InvalidMessage as error:
        got, wanted = f"an attestation with {error.got}", error.wanted
        raise InvalidMessage("adopt what is held", got=got, wanted=wanted, next_step="ms restore --end") from error


def _sign(attestation: Attestation, key: str) -> str:
    packed = base64.b64encode(zlib.compress(encode(attestation))).decode()
    return f"{_signature(packed, key)}.{packed}" if len(packed) <= ATTESTATION_BYTES_MAX else ""


def _signature(packed: str, key: str) -> str:
    """Returns what only who has the key can add.

    Source: HMAC, RFC 2104, with SHA-256; a label keeps it apart from what else is made of the key.
    """
    return hmac.new(key.encode(), f"attestation {packed}".encode(), hashlib.sha256).hexdigest()
