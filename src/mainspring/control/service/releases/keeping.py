"""Releases and their trust as one store keeps them: numbered, signed by people, published, revoked.

Nothing here decides what is well signed: that is `trust.py`. What is published and what is signed change in one
transaction, so no robot ever reads metadata of which a part is missing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import final

import sqlalchemy as sa
from tuf.api.metadata import Metadata, Root, Signed, Snapshot, TargetFile, Targets, Timestamp

from mainspring.control.service.releases import trust as rules
from mainspring.control.store.audit import note
from mainspring.control.store.records import tenants
from mainspring.control.store.releases.tables import policy_releases, release_files, trust
from mainspring.control.store.store import Store
from mainspring.control.store.tokens import LAB_ITSELF, Caller
from mainspring.domain.answers import (
    NewPolicyRelease,
    PolicyRelease,
    ReleaseState,
    ReleaseView,
    Revocation,
    SignedText,
    TrustView,
)
from mainspring.domain.answers.policies.releases import (
    BY_PEOPLE,
    BY_SERVER,
    PIECE_BYTES_MAX,
    ReleaseReference,
    artifact_key,
)
from mainspring.domain.codec import decode, encode
from mainspring.domain.errors import Conflict, InvalidInput, LimitReached, NotFound, nearest
from mainspring.domain.job import LAB
from mainspring.domain.ports import Clock
from mainspring.domain.team import Right
from mainspring.objects import open_store

RELEASES_MAX = 1_000  # Published or pending at once: their targets stay far below what clients of TUF read.
RENEWED_S = (
    3_600.0  # A timestamp is made anew after an hour: what is kept from a robot is noticed, and little is signed.
)
KEPT_VERSIONS = 20  # Of what the server signs: a robot in the middle of a refresh finds the older ones.
AWAITING = "awaiting"  # Targets that too few have signed so far.
_FILE = re.compile(r"(?:([0-9]{1,9})\.)?(root|targets|snapshot|timestamp|automatic)\.json")
_HASHED = re.compile(r"[0-9a-f]{64}\.(?=.)")  # What clients put before a target's name where snapshots are consistent.
_NUMBERED = re.compile(r"(.+)\.([0-9]{1,9})\.json")
_LIVE = (ReleaseState.PENDING.value, ReleaseState.PUBLISHED.value)


@final
class PolicyReleases:
    """The releases of one controller. Used by many threads.

    Args:
        key: What the server's own keys are made from.
        objects_url: Where files of releases are.
    """

    def __init__(self, store: Store, clock: Clock, key: str, objects_url: str) -> None:
        self._store = store
        self._clock = clock
        self._key = key
        self._objects_url = objects_url

    # ---------------------------------------------------------------- releases

    def ls(
        self,
        caller: Caller = LAB_ITSELF,
        *,
        name: str | None = None,
        state: ReleaseState | None = None,
        limit: int = 50,
    ) -> tuple[ReleaseView, ...]:
        """Returns releases, newest first, without what is signed.

        Args:
            name: Only those of this name, unless None.
            state: Only those in this state, unless None.
        """
        asked = sa.select(policy_releases).order_by(policy_releases.c.ordinal.desc()).limit(limit)
        if name is not None:
            asked = asked.where(policy_releases.c.name == name)
        if state is not None:
            asked = asked.where(policy_releases.c.state == state.value)
        with self._store.read() as connection:
            return tuple(replace(_view(row), text="") for row in connection.execute(asked))

    def show(self, reference: str, caller: Caller = LAB_ITSELF) -> ReleaseView:
        """Returns one release.

        Raises:
            NotFound: There is no such release.
        """
        with self._store.read() as connection:
            return _view(_found(connection, reference))

    def create(self, asked: NewPolicyRelease, caller: Caller = LAB_ITSELF) -> ReleaseView:
        """Numbers a release and returns it; one that is automatic is published at once.

        Raises:
            NotAllowed: The caller may not make releases of its team.
            NotFound: There is no such team, or a file is not in the object store.
            Conflict: An automatic one, and nobody has let the server sign any.
            LimitReached: There are too many.
        """
        if not self._store.joining:
            self.require_files(asked)
        now_s = self._clock.now_s()
        with self._store.write() as connection:
            known = {LAB, *(each.name for each in tenants(connection))}
            if asked.team not in known:
                raise NotFound("make a release", on=f"team {asked.team!r}", wanted=nearest(asked.team, known))
            caller.require(connection, Right.MAKE_RELEASES, asked.team)
            count = sa.select(sa.func.count()).where(policy_releases.c.state.in_(_LIVE))
            if (live := connection.execute(count).scalar_one()) >= RELEASES_MAX:
                wanted, step = f"at most {RELEASES_MAX}", "ms release revoke those that nothing runs"
                raise LimitReached("make a release", got=f"{live} that are not revoked", wanted=wanted, next_step=step)
            newest = sa.select(sa.func.max(policy_releases.c.version)).where(policy_releases.c.name == asked.name)
            version = (connection.execute(newest).scalar_one() or 0) + 1
            release = PolicyRelease(version=version, made_s=now_s, maker=str(caller), content=asked)
            _insert(connection, release)
            note(connection, caller, "make a release", release.reference, team=asked.team, now_s=now_s)
            if asked.automatic:
                self._publish_automatic(connection, now_s)
            return _view(_found(connection, release.reference))

    def require_files(self, asked: NewPolicyRelease, caller: Caller = LAB_ITSELF) -> None:
        """Returns if the files of a release are in the object store, which may take long; no writer waits for it.

        Raises:
            NotFound: One is not.
        """
        store = open_store(self._objects_url)
        for file in asked.files:
            found = store.size(artifact_key(file.sha256))
            if found != file.size_bytes:
                got = "no such file" if found is None else f"{found} bytes"
                raise NotFound(
                    "release files", on=file.path, got=got, wanted=f"{file.size_bytes} bytes in the object store"
                )

    def revoke(self, reference: str, why: Revocation, caller: Caller = LAB_ITSELF) -> ReleaseView:
        """Revokes a release and returns it; one that is revoked stays as it is.

        Raises:
            NotAllowed: The caller may not make releases of its team.
            NotFound: There is no such release.
        """
        now_s = self._clock.now_s()
        with self._store.write() as connection:
            row = _found(connection, reference)
            caller.require(connection, Right.MAKE_RELEASES, row.team)
            view = _view(row)
            if view.state is not ReleaseState.REVOKED:
                changed = {"state": ReleaseState.REVOKED.value, "reason": why.reason.strip()}
                own = policy_releases.c.ordinal == row.ordinal
                connection.execute(sa.update(policy_releases).where(own).values(changed))
                told = (caller, "revoke a release", view.release.reference)
                note(connection, *told, team=row.team, now_s=now_s, reason=why.reason[:200])
                if view.release.content.automatic and view.state is ReleaseState.PUBLISHED:
                    self._publish_automatic(connection, now_s)
            return _view(_found(connection, view.release.reference))

    # ---------------------------------------------------------------- trust

    def trust(self, caller: Caller = LAB_ITSELF) -> TrustView:
        """Returns by whose keys releases are trusted, and what waits for signatures."""
        with self._store.read() as connection:
            return self._trust(connection)

    def put_root(self, signed: SignedText, caller: Caller = LAB_ITSELF) -> TrustView:
        """Takes a root of trust.

        Raises:
            NotAllowed: The caller may not say whose keys are trusted.
            InvalidInput: See `accept_root`.
        """
        now_s = self._clock.now_s()
        with self._store.write() as connection:
            caller.require(connection, Right.SET_TRUST, LAB)
            before = _root(connection)
            root = rules.accept_root(before, signed.text, rules.ServerKeys(self._key), now_s)
            _put(connection, rules.ROOT, root.signed.version, signed.text)
            note(connection, caller, "set the root of trust", f"version {root.signed.version}", now_s=now_s)
            return self._trust(connection)

    def put_targets(self, signed: SignedText, caller: Caller = LAB_ITSELF) -> TrustView:
        """Takes signed targets, and publishes what they hold once enough have signed.

        Raises:
            Conflict: There is no root of trust yet.
            InvalidInput: They do not follow, nobody who counts has signed, or they hold something else than releases.
        """
        now_s = self._clock.now_s()
        with self._store.write() as connection:
            root = _root(connection)
            if root is None:
                raise Conflict("accept signed targets", got="no root of trust", next_step="ms release trust new")
            before = _targets(connection)
            found = rules.accept_targets(root.signed, before, signed.text, now_s)
            named = _checked_targets(connection, found.signed)
            connection.execute(sa.delete(trust).where(trust.c.role == AWAITING))
            whole = len(rules.signers(root.signed, found)) >= root.signed.roles[rules.TARGETS].threshold
            _put(connection, rules.TARGETS if whole else AWAITING, found.signed.version, signed.text)
            what = ", ".join(release.reference for release in named)[:200] or "no release"
            note(connection, caller, "publish targets" if whole else "sign targets", what, now_s=now_s)
            if whole:
                chosen = policy_releases.c.name, policy_releases.c.version
                pairs = [(release.content.name, release.version) for release in named]
                published = sa.update(policy_releases).where(sa.tuple_(*chosen).in_(pairs))
                connection.execute(published.values(state=ReleaseState.PUBLISHED.value))
                self._publish(connection, now_s)
            return self._trust(connection)

    def metadata(self, file: str, caller: Caller = LAB_ITSELF) -> bytes:
        """Returns metadata by the name that clients of TUF give it.

        Raises:
            NotFound: There is none of that name.
        """
        match = _FILE.fullmatch(file)
        if match is None:
            raise NotFound("read metadata", on=repr(file[:80]), wanted="such as timestamp.json or 1.root.json")
        version, role = match.groups()
        if role == rules.TIMESTAMP:
            self._renew()
        with self._store.read() as connection:
            found = _newest(connection, role) if version is None else _text(connection, role, int(version))
        if found is None:
            raise NotFound("read metadata", on=file, got="none")
        return found.encode()

    def piece(
        self, folder: str, name: str, caller: Caller = LAB_ITSELF, *, offset: int = 0, limit: int = PIECE_BYTES_MAX
    ) -> bytes:
        """Returns a piece of a published target, b"" past its end.

        Raises:
            NotFound: There is no such target, or it is not published.
        """
        name = _HASHED.sub("", name, count=1)
        numbered = _NUMBERED.fullmatch(name)
        with self._store.read() as connection:
            if folder in (BY_PEOPLE, BY_SERVER) and numbered is not None:
                view = _view(_found(connection, f"{numbered[1]}@{numbered[2]}"))
                if view.state is ReleaseState.PUBLISHED and view.release.target == f"{folder}/{name}":
                    return view.text.encode()[offset : offset + limit]
            else:
                joined = sa.select(policy_releases.c.ordinal).join(release_files)
                own = release_files.c.sha256 == name, policy_releases.c.state == ReleaseState.PUBLISHED.value
                if connection.execute(joined.where(*own).limit(1)).first() is not None:
                    return self._range(name, offset, limit)
        raise NotFound("fetch a target", on=f"{folder}/{name}"[:200], got="none that is published")

    def _range(self, sha256: str, offset: int, limit: int) -> bytes:
        store, key = open_store(self._objects_url), artifact_key(sha256)
        size = store.size(key) or 0
        return store.get_range(key, offset=offset, size_bytes=min(limit, size - offset)) if offset < size else b""

    def _trust(self, connection: sa.Connection) -> TrustView:
        keys, root = rules.ServerKeys(self._key), _root(connection)
        every: dict[str, Signed] = {} if root is None else {rules.ROOT: root.signed}
        for kind in (Targets, Snapshot, Timestamp):
            if (text := _newest(connection, kind.type)) is not None:
                every[kind.type] = Metadata.from_bytes(text.encode()).signed
        awaiting = _newest(connection, AWAITING) or ""
        return TrustView(
            versions={role: each.version for role, each in every.items()},
            expires={role: f"{each.expires:%Y-%m-%dT%H:%M:%SZ}" for role, each in every.items()},
            people=() if root is None else tuple(root.signed.roles[rules.TARGETS].keyids),
            threshold=0 if root is None else root.signed.roles[rules.TARGETS].threshold,
            server=keys.public(),
            awaiting=awaiting,
            signed=rules.signers(root.signed, rules.read(Targets, awaiting)) if root is not None and awaiting else (),
        )

    # ---------------------------------------------------------------- what the server signs

    def _publish_automatic(self, connection: sa.Connection, now_s: float) -> None:
        """Signs the automatic releases that there are, and all that follows of it."""
        targets = _targets(connection)
        if targets is None or not rules.delegates(targets.signed):
            step = "ms release trust new --automatic, or sign this one by people's keys"
            raise Conflict("release by itself", got="targets that do not let the server sign", next_step=step)
        rows = connection.execute(sa.select(policy_releases).where(policy_releases.c.state.in_(_LIVE)))
        own = [view for view in map(_view, rows) if view.release.content.automatic]
        for view in own:
            at = (
                policy_releases.c.name == view.release.content.name,
                policy_releases.c.version == view.release.version,
            )
            connection.execute(sa.update(policy_releases).where(*at).values(state=ReleaseState.PUBLISHED.value))
        version = _version(connection, rules.AUTOMATIC) + 1
        made = rules.new_automatic(rules.ServerKeys(self._key), version, _files_of(own), now_s)
        _put(connection, rules.AUTOMATIC, version, made)
        self._publish(connection, now_s)

    def _publish(self, connection: sa.Connection, now_s: float) -> None:
        """Makes snapshot and timestamp of the newest targets."""
        keys = rules.ServerKeys(self._key)
        roles = (rules.TARGETS, rules.AUTOMATIC)
        versions = {role: version for role in roles if (version := _version(connection, role))}
        if rules.AUTOMATIC not in versions and rules.delegates(_must(_targets(connection)).signed):
            _put(connection, rules.AUTOMATIC, 1, rules.new_automatic(keys, 1, {}, now_s))
            versions[rules.AUTOMATIC] = 1
        snapshot = _version(connection, rules.SNAPSHOT) + 1
        _put(connection, rules.SNAPSHOT, snapshot, rules.new_snapshot(keys, snapshot, versions, now_s))
        self._stamp(connection, now_s)

    def _stamp(self, connection: sa.Connection, now_s: float) -> None:
        version = _version(connection, rules.TIMESTAMP) + 1
        made = rules.new_timestamp(rules.ServerKeys(self._key), version, _version(connection, rules.SNAPSHOT), now_s)
        _put(connection, rules.TIMESTAMP, version, made)
        for role in rules.OWN_ROLES:
            old = _version(connection, role) - KEPT_VERSIONS
            connection.execute(sa.delete(trust).where(trust.c.role == role, trust.c.version <= old))

    def _renew(self) -> None:
        """Makes the timestamp anew where it is old, and what else the server signs before that ends."""
        now_s = self._clock.now_s()
        with self._store.read() as connection:
            if not _is_old(connection, now_s):
                return
        with self._store.write() as connection:
            if not _is_old(connection, now_s):  # Another was quicker.
                return
            half = rules.at(now_s + rules.ONLINE_DAYS * 43_200.0)
            automatic, snapshot = _newest(connection, rules.AUTOMATIC), _newest(connection, rules.SNAPSHOT)
            if automatic is not None and rules.read(Targets, automatic).signed.is_expired(half):
                self._publish_automatic(connection, now_s)
            elif snapshot is not None and rules.read(Snapshot, snapshot).signed.is_expired(half):
                self._publish(connection, now_s)
            else:
                self._stamp(connection, now_s)


def _is_old(connection: sa.Connection, now_s: float) -> bool:
    newest = _newest(connection, rules.TIMESTAMP)
    if newest is None:
        return False
    left_s = (rules.read(Timestamp, newest).signed.expires - rules.at(now_s)).total_seconds()
    return left_s < rules.ONLINE_DAYS * 86_400.0 - RENEWED_S


def _checked_targets(connection: sa.Connection, offered: Targets) -> tuple[PolicyRelease, ...]:
    """Returns the releases that targets hold: all that are published, perhaps some that wait, and nothing else.

    Raises:
        InvalidInput: They hold something else, or lack something.
    """
    rows = connection.execute(sa.select(policy_releases).where(policy_releases.c.state.in_(_LIVE)))
    live = [view for view in map(_view, rows) if not view.release.content.automatic]
    named = [view for view in live if view.release.target in offered.targets]
    lacking = [view for view in live if view.state is ReleaseState.PUBLISHED and view not in named]
    wanted = _files_of(named)
    if lacking or wanted != offered.targets:
        odd = sorted({*wanted} ^ {*offered.targets}) or sorted(
            path for path in wanted if wanted[path] != offered.targets[path]
        )
        got = (
            f"none of {lacking[0].release.reference}, which is published" if lacking else f"other files: {odd[0][:100]}"
        )
        wanted_words = "what is published, and releases that wait"
        raise InvalidInput("accept signed targets", got=got, wanted=wanted_words, next_step="ms release sign, anew")
    if offered.delegations is not None and not rules.delegates(offered):
        got, wanted_role = "other delegations", f"{rules.AUTOMATIC} alone, of its own folder"
        raise InvalidInput("accept signed targets", got=got, wanted=wanted_role)
    return tuple(view.release for view in named)


def _files_of(views: Iterable[ReleaseView]) -> Mapping[str, TargetFile]:
    """Returns the targets that releases are: each itself, and its files."""
    found: dict[str, TargetFile] = {}
    for view in views:
        release = view.release
        found[release.target] = TargetFile(len(view.text.encode()), {"sha256": view.sha256}, release.target)
        for file in release.content.files:
            path = release.target_of_file(file)
            found[path] = TargetFile(file.size_bytes, {"sha256": file.sha256}, path)
    return found


# ---------------------------------------------------------------- rows


def _insert(connection: sa.Connection, release: PolicyRelease) -> None:
    text = encode(release)
    row = {
        "name": release.content.name,
        "version": release.version,
        "team": release.content.team,
        "state": ReleaseState.PENDING.value,
        "reason": "",
        "sha256": hashlib.sha256(text).hexdigest(),
        "release": text.decode(),
    }
    made = connection.execute(sa.insert(policy_releases).values(row).returning(policy_releases.c.ordinal)).scalar_one()
    files = sorted({file.sha256 for file in release.content.files})
    connection.execute(sa.insert(release_files), [{"sha256": sha256, "release": made} for sha256 in files])


def _found(connection: sa.Connection, reference: str) -> sa.Row[tuple[object, ...]]:
    asked = ReleaseReference.read(reference)
    wanted = sa.select(policy_releases).where(policy_releases.c.name == asked.name)
    if asked.version is not None:
        wanted = wanted.where(policy_releases.c.version == asked.version)
    row = connection.execute(wanted.order_by(policy_releases.c.version.desc()).limit(1)).first()
    if row is None:
        names = connection.execute(sa.select(policy_releases.c.name).distinct().limit(RELEASES_MAX)).scalars()
        raise NotFound("find a release", on=repr(reference[:80]), wanted=nearest(asked.name[:80], tuple(names)))
    return row


def _view(row: sa.Row[tuple[object, ...]]) -> ReleaseView:
    return ReleaseView(
        release=decode(PolicyRelease, row.release.encode()),
        state=ReleaseState(row.state),
        reason=row.reason,
        sha256=row.sha256,
        text=row.release,
    )


def _root(connection: sa.Connection) -> Metadata[Root] | None:
    text = _newest(connection, rules.ROOT)
    return None if text is None else rules.read(Root, text)


def _targets(connection: sa.Connection) -> Metadata[Targets] | None:
    text = _newest(connection, rules.TARGETS)
    return None if text is None else rules.read(Targets, text)


def _must(found: Metadata[Targets] | None) -> Metadata[Targets]:
    assert found is not None, "nothing is published without targets"
    return found


def _version(connection: sa.Connection, role: str) -> int:
    return connection.execute(sa.select(sa.func.max(trust.c.version)).where(trust.c.role == role)).scalar_one() or 0


def _newest(connection: sa.Connection, role: str) -> str | None:
    return _text(connection, role, _version(connection, role))


def _text(connection: sa.Connection, role: str, version: int) -> str | None:
    own = (trust.c.role == role, trust.c.version == version)
    return connection.execute(sa.select(trust.c.body).where(*own)).scalar_one_or_none()


def _put(connection: sa.Connection, role: str, version: int, text: str) -> None:
    connection.execute(sa.insert(trust).values(role=role, version=version, body=text))
