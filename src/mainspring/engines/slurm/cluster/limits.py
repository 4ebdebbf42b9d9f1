"""Slurm limits: how much more associations and QOS let us ask for, less what is used of them.

`scontrol show assoc_mgr` tells both limits and use, from the controller's memory. What a QOS allows each user, and its
grace, only the database tells before the user's first job there.
Source: scontrol(1), sacctmgr(1), Resource Limits (slurm.schedmd.com/resource_limits.html); info_assoc_mgr.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

from mainspring.engines.slurm.cluster.text import duration_s, fields, told, tres, unreadable, whole_number

JOBS = "jobs"  # Beside the names of TRES: how many more jobs.
QOS_FORMAT = "Name,GraceTime,MaxJobsPU,MaxSubmitPU,MaxTRESPU"
ASSOCIATION_FORMAT = "Account,DefaultQOS"
DEFAULT_QOS = "normal"  # What jobs get where nothing else is said.
_TITLE = "Current Association Manager state"
_LIMIT = re.compile(r"([^=,\s]+)=([0-9]+)(?:\(([0-9]+)\))?(?=,|$)")
_COUNT = re.compile(r"([0-9]+)(?:\(([0-9]+)\))?")
_BY_USER = re.compile(r"(?:[^\s{}()=]+\()?([0-9]+)\)?=\{([^{}]*)\}")

Room = Mapping[str, float]  # What is left, by TRES; what is not there has no limit.


@dataclass(frozen=True, slots=True, kw_only=True)
class QosRow:
    """What the database says of a QOS.

    Args:
        grace_s: Between Slurm's word to a job that it must end and the end.
        room: What it allows each user.
    """

    grace_s: float = 0.0
    room: Room = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """What only the accounting database tells.

    Args:
        qos: Each QOS, by name.
        default_qos: The QOS of our jobs that name none, by account.
    """

    qos: Mapping[str, QosRow] = field(default_factory=dict)
    default_qos: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What accounting says of us; nothing at all where there is none.

    Args:
        associations: Records of `scontrol show assoc_mgr`: ours, and those of accounts.
        qos: Records of QOS, by name.
        user_number: Our user's number in the system.
        database: What only the database tells.
    """

    associations: tuple[Mapping[str, str], ...] = ()
    qos: Mapping[str, str] = field(default_factory=dict)
    user_number: int = 0
    database: Database = field(default_factory=Database)

    def room(self, *, partition: str, partition_qos: str, accounts: Iterable[str], qos: Iterable[str]) -> Room:
        """Returns how much more the most generous of our accounts and QOS allow.

        Args:
            partition_qos: Its own QOS, "" for none.
            accounts: Those our jobs may run under; "" for the user's own.
            qos: Those our jobs may ask for; "" for the default one.
        """
        named = [self._account(account) for account in accounts]
        of_accounts = _most([self._room_of_account(account, partition) for account in named])
        names = {name or self.database.default_qos.get(account, DEFAULT_QOS) for name in qos for account in named}
        of_qos = _most([self._room_of_qos(name) for name in sorted(names)])
        return least([of_accounts, of_qos, self._room_of_qos(partition_qos)])

    def grace_s(self, qos: str) -> float:
        """Returns what a QOS gives jobs that it takes back.

        Args:
            qos: Its name; "" for the default one.
        """
        return self.database.qos.get(self._qos(qos), QosRow()).grace_s

    def time_max_s(self, qos: str) -> float:
        """Returns the longest time a QOS allows.

        Args:
            qos: Its name; "" for the default one.
        """
        return 60.0 * whole_number(fields(self.qos.get(self._qos(qos), "")).get("MaxWallPJ"))

    def _qos(self, qos: str) -> str:
        return qos or self.database.default_qos.get(self._account(""), DEFAULT_QOS)

    def _account(self, account: str) -> str:
        ours = (
            row["Account"] for row in self.associations if told(row.get("UserName")) and row.get("DefAssoc") == "Yes"
        )
        return account or next(ours, "")

    def _room_of_account(self, account: str, partition: str) -> Room:
        """Returns what our association with an account allows, and every account above it."""
        above = {row["Account"]: row for row in self.associations if not told(row.get("UserName"))}
        rooms = [
            _room(row)
            for row in self.associations
            if row["Account"] == account and told(row.get("UserName")) and row.get("Partition") in ("", partition)
        ]
        for _ in range(len(above)):
            record = above.get(account)
            if record is None:
                break
            rooms.append(_room(record))
            account = record.get("ParentAccount", "").partition("(")[0]
        return least(rooms)

    def _room_of_qos(self, qos: str) -> Room:
        record, _, by_user = self.qos.get(qos, "").partition("User Limits=")
        used: dict[str, float] = {}
        for number, text in _BY_USER.findall(by_user):
            if int(number) == self.user_number:
                used = _used(fields(text))
        row = self.database.qos.get(qos, QosRow())
        per_user = {name: max(0.0, limit - used.get(name, 0.0)) for name, limit in row.room.items()}
        return least([_room(fields(record)), per_user])


def read_limits(text: str, *, user_number: int, database: Database, on: str) -> Limits:
    """Returns what `scontrol show assoc_mgr flags=assoc,qos` tells.

    Args:
        user_number: Our user's number in the system.
        database: What only the database tells.
        on: Which cluster, for messages.

    Raises:
        Unavailable: It wrote something else.
    """
    if not text.startswith(_TITLE):
        raise unreadable("read the limits of Slurm", got=text, wanted=f"{_TITLE!r}", on=on)
    associations = tuple(fields(line) for line in text.split("\n") if line.startswith("ClusterName="))
    return Limits(
        associations=tuple(row for row in associations if "Account" in row),
        qos={line[4:].partition("(")[0]: line for line in text.split("\n") if line.startswith("QOS=")},
        user_number=user_number,
        database=database,
    )


def read_database(qos_text: str, association_text: str) -> Database:
    """Returns what the database tells; lines of another form are passed over.

    Args:
        qos_text: What `sacctmgr --noheader --parsable2 show qos format=` `QOS_FORMAT` wrote.
        association_text: The same of our associations and `ASSOCIATION_FORMAT`.
    """
    rows: dict[str, QosRow] = {}
    for line in qos_text.splitlines():
        words = line.split("|")
        if len(words) == QOS_FORMAT.count(",") + 1:
            name, grace, jobs_running, jobs_all, limits = words
            jobs = min(whole_number(jobs_running), whole_number(jobs_all))
            rows[name] = QosRow(
                grace_s=duration_s(grace) or 0.0, room=tres(limits) if jobs == inf else {**tres(limits), JOBS: jobs}
            )
    pairs = (line.partition("|") for line in association_text.splitlines())
    return Database(qos=rows, default_qos={account: qos for account, _, qos in pairs if qos})


def least(rooms: Iterable[Room]) -> Room:
    """Returns what all of them allow."""
    left: dict[str, float] = {}
    for room in rooms:
        for name, amount in room.items():
            left[name] = min(amount, left.get(name, inf))
    return left


def _most(rooms: list[Room]) -> Room:
    """Returns what at least one of them allows."""
    shared = set.intersection(*(set(room) for room in rooms)) if rooms else set()
    return {name: max(room[name] for room in rooms) for name in sorted(shared)}


def _room(record: Mapping[str, str]) -> Room:
    """Returns what is left of one record's own limits; a limit on each job is one on what one look offers."""
    counts = (
        _COUNT.fullmatch(record.get(name, "")) for name in ("GrpJobs", "GrpSubmitJobs", "MaxJobs", "MaxSubmitJobs")
    )
    limits = (_LIMIT.findall(record.get(name, "")) for name in ("GrpTRES", "MaxTRESPJ"))
    left: list[Room] = [
        *({JOBS: max(0.0, float(count[1]) - float(count[2] or 0))} for count in counts if count),
        *({kind: max(0.0, float(most) - float(used or 0)) for kind, most, used in each} for each in limits),
    ]
    if any(float(used or 0) >= float(limit) for _, limit, used in _LIMIT.findall(record.get("GrpTRESMins", ""))):
        left.append({JOBS: 0.0})
    return least(left)


def _used(record: Mapping[str, str]) -> dict[str, float]:
    used: dict[str, float] = {}
    for entry in record.get("MaxTRESPU", "").split(","):
        name, _, amounts = entry.rpartition("=")
        if amounts.endswith(")"):
            used[name] = float(amounts[:-1].rpartition("(")[2])
    for name in ("MaxSubmitJobsPU", "MaxJobsPU"):
        amounts = record.get(name, "")
        if amounts.endswith(")"):
            used[JOBS] = max(used.get(JOBS, 0.0), float(amounts[:-1].rpartition("(")[2]))
    return used
