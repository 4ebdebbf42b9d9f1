"""Clips that robots told the lab of, before their bytes come: kept in the object store, asked for by people.

`clips/<dataset>/<robot>/<time>-<id>.json` is a clip as its robot tells it; `clips_asked/<robot>/<id>` says that
somebody wants its bytes. Both are put there once, so any number of servers, and tries, come to the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import final

import sqlalchemy as sa

from mainspring.control.service.stored.owners import DatasetOwners, opened_store
from mainspring.control.store.robots import records
from mainspring.control.store.store import Store
from mainspring.control.store.tokens import LAB_ITSELF, Caller
from mainspring.domain.answers import (
    CLIPS_LISTED_MAX,
    CLIPS_TOLD_MAX,
    ClipCatalog,
    ClipEntry,
    ClipsAsked,
    ClipView,
    ClipWay,
    RobotState,
)
from mainspring.domain.codec import decode, encode, message
from mainspring.domain.errors import InvalidInput, NotAllowed, NotFound
from mainspring.domain.ids import checked_name
from mainspring.domain.job import LAB
from mainspring.domain.team import RIGHTS, Right, Whose
from mainspring.objects import Blob, ObjectStore

REQUESTS_AT_ONCE = 16
TEXT_LENGTH_MAX = 300
TRIGGERS_MAX = 64
SIZE_BYTES_MAX = 256 << 30  # As of any recording that is sent.
PREFIX_MIN = 6  # Letters of an id that name one clip among a million, nearly always.
_ID = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,110}\.mcap")
_KEY = re.compile(r"clips/([^/]+)/([^/]+)/(\d{20})-([0-9a-f]{64})\.json")


@message("ClipKept")
class ClipKept:
    """A clip as a robot told it, and who sent that."""

    clip: ClipEntry
    sender: str


@final
class Clips:
    """What the lab knows of clips. Used by many threads.

    Args:
        store: Where robots are.
        owners: Whose the datasets are that they are for.
        objects_url: Where it is kept.
        did: Notes what somebody did.
    """

    def __init__(
        self, store: Store, owners: DatasetOwners, objects_url: str, did: Callable[[Caller, str, str], None]
    ) -> None:
        self._store = store
        self._owners = owners
        self._objects_url = objects_url
        self._did = did

    def tell(self, dataset: str, told: ClipCatalog, caller: Caller = LAB_ITSELF) -> ClipsAsked:
        """Keeps what a robot tells of its clips, and returns which of them somebody asked for.

        The dataset is one of the robot's team, or everybody's; one that begins with this is its team's.

        Raises:
            InvalidInput: A clip cannot be one, or there are too many.
            NotAllowed: The caller speaks for none of these robots, or not for all of them.
            NotFound: The dataset is another team's.
        """
        checked_name(dataset, "dataset")
        if len(told.clips) > CLIPS_TOLD_MAX:
            raise InvalidInput("hear of clips", got=f"{len(told.clips)}", wanted=f"at most {CLIPS_TOLD_MAX} at once")
        for clip in told.clips:
            _check(clip)
        named = sorted({clip.robot for clip in told.clips})
        with self._store.read() as connection:
            for robot in named:
                _require_voice(connection, robot, caller)
        self._owners.begin_for(dataset, named, caller)
        objects = self._objects

        def keep(clip: ClipEntry) -> None:
            key = f"clips/{dataset}/{clip.robot}/{clip.begun_ns:020d}-{clip.id}.json"
            objects.put_if_absent(key, encode(ClipKept(clip=clip, sender=str(caller)[:TEXT_LENGTH_MAX])))

        if len(told.clips) == 1:  # As most often: a thread takes longer to begin than this does.
            keep(told.clips[0])
        else:
            with ThreadPoolExecutor(REQUESTS_AT_ONCE, "clips") as pool:
                list(pool.map(keep, told.clips))
        asked: set[str] = set()
        for robot in named:
            asked |= {seen.key.rpartition("/")[2] for seen in objects.list(f"clips_asked/{robot}")}
        return ClipsAsked(ids=tuple(clip.id for clip in told.clips if clip.id in asked))

    def every(
        self, caller: Caller = LAB_ITSELF, *, dataset: str | None = None, robot: str | None = None, limit: int = 50
    ) -> tuple[ClipView, ...]:
        """Returns clips for datasets that the caller may read, newest first.

        Args:
            dataset: Only those for this dataset.
            robot: Only this robot's.
            limit: At most so many.
        """
        objects = self._objects
        found = self._keys(dataset, robot, caller)[-min(limit, CLIPS_LISTED_MAX) :]
        asked = {seen.key.rpartition("/")[2] for seen in objects.list("clips_asked")}

        def view(key: str) -> ClipView:
            kept = decode(ClipKept, objects.get(key))
            here = objects.size(Blob(id=kept.clip.id, size_bytes=kept.clip.size_bytes).key) is not None
            coming = kept.clip.send or kept.clip.id in asked
            way = ClipWay.HERE if here else ClipWay.COMING if coming else ClipWay.ROBOT
            return ClipView(dataset=key.split("/")[1], clip=kept.clip, way=way, sender=kept.sender)

        with ThreadPoolExecutor(REQUESTS_AT_ONCE, "clips") as pool:
            return tuple(pool.map(view, reversed(found)))

    def ask(self, wanted: ClipsAsked, caller: Caller = LAB_ITSELF) -> ClipsAsked:
        """Has robots send the bytes of clips the next time they look, and returns the clips' whole ids.

        Args:
            wanted: Their ids, or how these begin.

        Raises:
            NotFound: There is no such clip for the caller, or several.
            NotAllowed: The caller may not add to its dataset.
            InvalidInput: An id cannot be one, or there are too many.
        """
        if not 0 < len(wanted.ids) <= CLIPS_TOLD_MAX:
            raise InvalidInput("ask for clips", got=f"{len(wanted.ids)}", wanted=f"1 to {CLIPS_TOLD_MAX}")
        keys = self._keys(None, None, caller)
        known = {key.rpartition("-")[2].removesuffix(".json"): key for key in keys}
        found = []
        for id in wanted.ids:
            if not re.fullmatch(rf"[0-9a-f]{{{PREFIX_MIN},64}}", id):
                raise InvalidInput("ask for clips", got=repr(id[:80]), wanted=f"an id, or {PREFIX_MIN} letters of it")
            meant = [one for one in known if one.startswith(id)]
            if len(meant) != 1:
                got = f"{len(meant)} that begin so"
                raise NotFound("find a clip", on=id, got=got, wanted="one", next_step="ms data clips")
            found += meant
        for dataset in sorted({known[id].split("/")[1] for id in found}):
            self._owners.begin(dataset, caller, there=True)
        for id in found:
            self._objects.put_if_absent(f"clips_asked/{known[id].split('/')[2]}/{id}", b"")
            self._did(caller, "ask for a clip", id)
        return ClipsAsked(ids=tuple(found))

    def _keys(self, dataset: str | None, robot: str | None, caller: Caller) -> Sequence[str]:
        """Returns the keys of clips that somebody may know of, oldest first."""
        seen = self._owners.seen_by(caller)
        keys = [seen.key for seen in self._objects.list("clips" if dataset is None else f"clips/{dataset}")]
        told = [match for key in keys if (match := _KEY.fullmatch(key)) and robot in (None, match[2])]
        told = [match for match in told if seen(match[1])]
        return [match[0] for match in sorted(told, key=lambda match: (match[3], match[4]))]

    @property
    def _objects(self) -> ObjectStore:
        return opened_store(self._objects_url)


def _check(clip: ClipEntry) -> None:
    checked_name(clip.robot, "robot")
    texts = (*clip.triggers, clip.release, clip.ring, clip.task)
    checks = {
        "id: 64 letters of 0-9 and a-f": _ID.fullmatch(clip.id),
        "name: a plain file name ending in .mcap": _NAME.fullmatch(clip.name),
        f"size_bytes: 1 to {SIZE_BYTES_MAX}": 0 < clip.size_bytes <= SIZE_BYTES_MAX,
        "times: since 1970, in order": 0 <= clip.begun_ns <= clip.ended_ns < 1 << 63,
        f"triggers: at most {TRIGGERS_MAX}": len(clip.triggers) <= TRIGGERS_MAX,
        f"texts: at most {TEXT_LENGTH_MAX} letters": all(len(text) <= TEXT_LENGTH_MAX for text in texts),
        "interventions: 0 or more": clip.interventions >= 0,
    }
    if broken := [wanted for wanted, holds in checks.items() if not holds]:
        raise InvalidInput("hear of a clip", on=clip.name[:80], wanted="; ".join(broken))


def _require_voice(connection: sa.Connection, robot: str, caller: Caller) -> None:
    """Returns if somebody speaks for a robot: it itself, by a token of its own name and team; or who manages it.

    Raises:
        NotAllowed: They do not, or the robot was revoked.
    """
    found = records.find_robot(connection, robot)
    if found is not None and found.state is RobotState.REVOKED:
        raise NotAllowed("tell of clips", on=f"robot {robot}", got="one that is revoked")
    team = LAB if found is None else found.team
    covers = caller.covers(connection, team)
    if covers and caller.role in RIGHTS[Right.MANAGE_ROBOTS, Whose.TEAM]:
        return
    if caller.holder != robot or not (covers or found is None):
        got = f"a token of {caller}" if caller.holder != robot else f"a token of its name in team {caller.team}"
        wanted = f"the robot's own token, or one of an admin of team {team}"
        step = f"ms token new {robot} --team {team} --role member"
        raise NotAllowed("tell of clips", on=f"robot {robot}", got=got, wanted=wanted, next_step=step)
