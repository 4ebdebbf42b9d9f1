"""Recordings that are sent to a server: where they lie until they are read, and what became of each.

`arrivals/<dataset>/` in the home folder is a dataset's inbox. In it `.recipe.yaml` says how its recordings are read,
`.senders/` who sent those that are in no dataset yet, `.outcomes/` what became of each, and `.refused/` holds those
that were left out, for people. What was taken is deleted: its bytes lie in the object store. Reading is another
program's work (`programs.take_in`), so that no recording can harm the controller.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Event, Lock, Thread
from typing import final

from mainspring import data  # Loads its names when they are used: a server that takes nothing in needs none.
from mainspring.domain.answers import ArrivalView, RecordingClaim, Standing
from mainspring.domain.codec import decode, encode
from mainspring.domain.errors import InvalidInput, Unavailable
from mainspring.domain.ids import checked_name
from mainspring.domain.ports import Clock
from mainspring.objects import Blob, Data
from mainspring.objects.files import reported, whole_file

RETRY_S = 60.0  # After a failure: a full disk or a store that does not answer is rarely over sooner.
STOP_S_MAX = 10.0
RECIPE = ".recipe.yaml"
OUTCOMES = ".outcomes"
REFUSED = ".refused"
SENDERS = ".senders"
RECORDING_BYTES_MIN = 16 << 20  # What the shortest one counts as: a limit in bytes bounds how many files there are.
_log = logging.getLogger(__name__)


@final
class Inboxes:
    """The inboxes of all datasets; `control`'s port `Arrivals`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.arrived = Event()  # Set whenever there may be something to read.
        self.arrived.set()
        self._claiming = Lock()
        self._claims: dict[str, RecordingClaim] = {}

    def view(self, dataset: str, name: str, blob: Blob) -> ArrivalView:
        """See `control.api_arrivals.Arrivals`."""
        arrival = _arrival(name, blob)
        inbox = self.folder / checked_name(dataset, "dataset")
        if not inbox.is_dir():
            return ArrivalView(standing=Standing.ARRIVING, offset=0)
        opened = data.Inbox(inbox)
        if (found := outcome(inbox, opened.path(arrival).name)) is not None:
            return found
        return ArrivalView(
            standing=Standing.ARRIVED if opened.path(arrival).exists() else Standing.ARRIVING,
            offset=opened.offset(arrival),
        )

    def claim(
        self,
        dataset: str,
        name: str,
        blob: Blob,
        claim: RecordingClaim,
        admit: Callable[[Sequence[RecordingClaim], int], None],
    ) -> None:
        """See `control.api_arrivals.Arrivals`."""
        path = _claim_path(self.folder / checked_name(dataset, "dataset"), _arrival(name, blob).file_name)
        if path.exists() or self.view(dataset, name, blob).standing is not Standing.ARRIVING:
            return
        with self._claiming:
            if path.exists():
                return
            counted = replace(claim, size_bytes=max(claim.size_bytes, RECORDING_BYTES_MIN))
            admit(self._all_claims(), counted.size_bytes)
            with reported("receive a recording", str(path)), whole_file(path) as file:
                file.write(encode(counted))

    def has(self, dataset: str) -> bool:
        """See `control.api_arrivals.Arrivals`."""
        return (self.folder / checked_name(dataset, "dataset")).is_dir()

    def claimed(self) -> Sequence[RecordingClaim]:
        """See `control.api_arrivals.Arrivals`."""
        with self._claiming:
            return self._all_claims()

    def _all_claims(self) -> Sequence[RecordingClaim]:
        """Returns every claim; a file that was read once is not read again."""
        before, self._claims = self._claims, {}
        folders = sorted(entry.path for entry in os.scandir(self.folder)) if self.folder.is_dir() else ()
        for folder in folders:
            with suppress(FileNotFoundError, NotADirectoryError), os.scandir(f"{folder}/{SENDERS}") as entries:
                for path in (entry.path for entry in entries if entry.name.endswith(".json")):
                    with suppress(FileNotFoundError):  # Taken in meanwhile.
                        self._claims[path] = before.get(path) or decode(RecordingClaim, Path(path).read_bytes())
        return tuple(self._claims.values())

    def append(self, dataset: str, name: str, blob: Blob, offset: int, body: Data) -> ArrivalView:
        """See `control.api_arrivals.Arrivals`."""
        opened, arrival = data.Inbox(self.folder / checked_name(dataset, "dataset")), _arrival(name, blob)
        if not offset or opened.offset(arrival) != offset:  # What grows here has come to nothing yet.
            before = self.view(dataset, name, blob)
            if before.standing is not Standing.ARRIVING:
                return before
        here = opened.append(arrival, offset, body)
        if not opened.path(arrival).exists():
            return ArrivalView(standing=Standing.ARRIVING, offset=here)
        self.arrived.set()
        return ArrivalView(standing=Standing.ARRIVED, offset=here)

    def set_recipe(self, dataset: str, text: bytes) -> None:
        """See `control.api_arrivals.Arrivals`. What was refused before is read once more, by the new recipe."""
        inbox = self.folder / checked_name(dataset, "dataset")
        kept, draft = inbox / RECIPE, inbox / f"{RECIPE}.draft"
        with reported("keep a recipe", str(kept)):
            with whole_file(draft) as file:
                file.write(text)
            try:
                data.recipe_from_yaml(draft)
            except InvalidInput as error:
                raise type(error)(
                    "keep a recipe",
                    on=error.on.replace(str(draft), f"that of {dataset}"),
                    got=error.got,
                    wanted=error.wanted,
                ) from error
            draft.rename(kept)
            for path in sorted((inbox / REFUSED).glob("*")):
                (inbox / OUTCOMES / f"{path.name}.json").unlink(missing_ok=True)
                path.rename(inbox / path.name)
        self.arrived.set()

    @property
    def waiting(self) -> bool:
        """Returns whether a recording waits to be read."""
        return any(True for _ in self._unread())

    def unread_s(self, now_s: float) -> float:
        """Returns for how long the recording that waits longest has been here whole, 0 for none."""
        came_s = now_s
        for path in self._unread():
            with suppress(FileNotFoundError):  # Taken in meanwhile.
                came_s = min(came_s, path.stat().st_mtime)
        return now_s - came_s

    def _unread(self) -> Iterator[Path]:
        if self.folder.is_dir():
            inboxes = (path for path in self.folder.iterdir() if path.is_dir())
            yield from (path for inbox in inboxes for path in inbox.iterdir() if not path.name.startswith("."))


@final
class Reader:
    """Has what arrived be read by a program of its own, one at a time, until it is stopped.

    Args:
        objects_url: The object store that episodes go to.
    """

    def __init__(self, inboxes: Inboxes, objects_url: str) -> None:
        self._inboxes = inboxes
        words = ("--inboxes", str(inboxes.folder), "--objects", objects_url)
        self._command = (sys.executable, "-m", "mainspring", "take-in", *words)
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="arrivals", daemon=True)

    def start(self) -> None:
        """Begins, with what lies there already."""
        self._thread.start()

    def stop(self) -> None:
        """Ends, and the program too; what it had not done is done when the server is started again."""
        self._stopping.set()
        self._inboxes.arrived.set()
        self._thread.join(2 * STOP_S_MAX)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._inboxes.arrived.wait(RETRY_S)
            self._inboxes.arrived.clear()
            try:
                if self._inboxes.waiting and not self._stopping.is_set() and self._read() != 0:
                    self._stopping.wait(RETRY_S)
            except OSError as error:
                _log.warning("recordings wait to be read: %s", error)
                self._stopping.wait(RETRY_S)

    def _read(self) -> int:
        program = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        while not self._stopping.is_set():
            try:
                return program.wait(1.0)
            except subprocess.TimeoutExpired:
                continue
        program.terminate()
        try:
            return program.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            program.kill()
            return program.wait()


def outcome(inbox: Path, name: str) -> ArrivalView | None:
    """Returns what became of a recording, or None while nothing has.

    Args:
        inbox: A dataset's inbox.
        name: The recording's name in it.
    """
    try:
        return decode(ArrivalView, (inbox / OUTCOMES / f"{name}.json").read_bytes())
    except FileNotFoundError:
        return None


def settle(inbox: Path, name: str, reason: str) -> None:
    """Says what became of a recording that was read, and removes it from the inbox. May be repeated.

    Args:
        inbox: A dataset's inbox.
        name: The recording's name in it.
        reason: Why some or all of it was left out; "" when nothing was.
    """
    path = inbox / name
    if not reason:
        _claim_path(inbox, name).unlink(missing_ok=True)
    try:
        size_bytes = path.stat().st_size
    except FileNotFoundError:
        return
    standing = Standing.REFUSED if reason else Standing.TAKEN
    with whole_file(inbox / OUTCOMES / f"{name}.json") as file:
        file.write(encode(ArrivalView(standing=standing, offset=size_bytes, reason=reason)))
    if reason:
        (inbox / REFUSED).mkdir(exist_ok=True)
        path.rename(inbox / REFUSED / name)
    else:
        path.unlink()


def forget_claims(inbox: Path, clock: Clock, *, older_s: float) -> None:
    """Forgets who was sending what never came.

    Args:
        inbox: A dataset's inbox, of which abandoned parts have been removed.
        older_s: How long ago they began.
    """
    here = {path.name for folder in (inbox, inbox / REFUSED) for path in folder.glob("*")}
    coming = data.Inbox(inbox).coming()
    for path in (inbox / SENDERS).glob("*.json"):
        if path.name.removesuffix(".json") not in here | coming and clock.now_s() - path.stat().st_mtime > older_s:
            path.unlink()


def _claim_path(inbox: Path, name: str) -> Path:
    return inbox / SENDERS / f"{name}.json"


def _arrival(name: str, blob: Blob) -> data.Arrival:
    try:
        return data.Arrival(name=name, blob=blob)
    except ModuleNotFoundError as error:
        raise Unavailable(
            "receive recordings",
            got=f"a server without the package {error.name!r}",
            next_step="there: pip install 'mainspring[data]'",
        ) from error
