"""What attempts may do with the object store, and the credentials that they get for it."""

from __future__ import annotations

import sqlalchemy as sa

from mainspring.checkpoint import job_folder
from mainspring.control.service.stored.owners import DatasetOwners
from mainspring.control.store.records import AttemptRecord, jobs_by_id, specs
from mainspring.control.store.restores.postings import posting
from mainspring.control.store.store import Store
from mainspring.control.store.tokens import Caller
from mainspring.data.views.places import golden_folder, view_key
from mainspring.domain.errors import NotFound
from mainspring.domain.ids import JobId
from mainspring.domain.job import checkpoint_named
from mainspring.domain.wire import CredentialsWanted, StoreCredentials, ViewCredentialsWanted
from mainspring.objects import BLOBS, Access, Grants


def granted(
    store: Store,
    call: CredentialsWanted | ViewCredentialsWanted,
    caller: Caller,
    *,
    grants: Grants | None,
    owners: DatasetOwners,
) -> StoreCredentials:
    """Returns credentials for an attempt's part of the object store, or for a view that its job names.

    Args:
        grants: Gives them, None for a server that gives none.
        owners: Whose the data is: of a view that is another team's by now nobody gets any.

    Raises:
        NotFound: No such allocation or view, or the server gives none.
        MainspringError: The token is not the attempt's, or the store refuses, or does not answer.
    """
    view, tried = call.view if isinstance(call, ViewCredentialsWanted) else "", "get credentials of the object store"
    with store.read() as connection:
        attempt = posting(connection, call.allocation, caller).attempt
        caller.require_attempt(attempt.id, tried)
        if grants is None:
            raise NotFound(tried, got="a server without objects_role")
        access = store_access(connection, attempt, view)
        team = jobs_by_id(connection, [attempt.job])[attempt.job].team
    if view:
        owners.require_view(view, team)
    return grants.grant(access, holder=f"{attempt.id}.{view}" if view else attempt.id)


def store_access(connection: sa.Connection, attempt: AttemptRecord, view: str = "") -> Access:
    """Returns what an attempt does with the object store; of it all, it reads what its job names.

    Args:
        view: Which its ranks want to read, with the checkpoint that their job begins from; "" for what its agents do.

    Raises:
        NotFound: Its job does not name the view.
    """
    spec = specs(connection, [attempt.job])[attempt.job]
    begins_from, _ = checkpoint_named(spec.begins_from)
    reads = (job_folder(JobId(begins_from)),) if begins_from else ()
    if not view:
        code = (spec.code.key,) if spec.code.key else ()
        return Access(writes=(job_folder(attempt.job),), reads=reads, objects=code)
    if view not in spec.views:
        raise NotFound(
            "read a view",
            on=view[:80],
            got=f"a job that names {len(spec.views)} others" if spec.views else "a job that names none",
            wanted="one that its spec names under 'views'",
            next_step="ms run --view VIEW",
        )
    return Access(reads=(*reads, golden_folder(view)), objects=(view_key(view),), named=(BLOBS,))
