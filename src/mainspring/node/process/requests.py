"""What an agent asks of a starter, and what that answers: see `starter.py`."""

from __future__ import annotations

from collections.abc import Mapping

from mainspring.domain.codec import message

ANSWER_BYTES_MAX = 64 << 10  # A path, a number, or words for people.
REASON_LETTERS_MAX = 2_000


@message("BeginStarter")
class BeginStarter:
    """Makes the folder that all it makes lies in. The answer is `Started`, with its own number.

    Args:
        folder: Absolute, its user's alone if it is there.
        end: Processes of a starter before it, to kill.
    """

    folder: str
    end: tuple[int, ...] = ()


@message("UnpackCode")
class UnpackCode:
    """Unpacks the archive whose file comes along, if one does; the answer is `Made`, see `actions.unpack`."""

    inside: str


@message("BindSocket")
class BindSocket:
    """Gives the socket that comes along its path. The answer is `Made`."""

    path: str


@message("WriteFiles")
class WriteFiles:
    """Writes files into a new folder, in memory if it can. The answer is `Made`."""

    name: str
    files: Mapping[str, str]


@message("RemovePath")
class RemovePath:
    """Removes a file or a folder. There is no answer."""

    path: str


@message("SignalProcess")
class SignalProcess:
    """Signals a process, or its group. There is no answer."""

    pid: int
    number: int
    group: bool


@message("StartProcess")
class StartProcess:
    """Starts a process whose output goes to the file that comes along; a second one is its control group's list.

    The answers are `Started`, and `Exited` once nothing that carries its mark lives.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str
    mark: str


@message("Made")
class Made:
    """Something is there now."""

    path: str


@message("Started")
class Started:
    """A process runs."""

    pid: int


@message("Exited")
class Exited:
    """A process has ended."""

    exit_code: int


@message("NotDone")
class NotDone:
    """It could not be done."""

    reason: str


StarterRequest = BeginStarter | UnpackCode | BindSocket | WriteFiles | RemovePath | SignalProcess | StartProcess
StarterAnswer = Made | Started | Exited | NotDone
