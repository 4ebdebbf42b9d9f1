"""What somebody says of a robot, in `edge.json` in the agent's folder: what it is, and how its policy server runs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from mainspring.domain.answers.policies.releases import Embodiment
from mainspring.domain.codec import from_plain, loads
from mainspring.domain.errors import InvalidInput, NotFound
from mainspring.robots.edge.machine import EdgeLimits

CONFIG = "edge.json"
_WINDOW = re.compile("([01][0-9]|2[0-3]):([0-5][0-9])-([01][0-9]|2[0-3]):([0-5][0-9])")


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeConfig:
    """A robot as its operator describes it.

    Args:
        fits: What it is.
        command: The policy server; "{slot}" stands for the folder of what it is to run.
        health: Address on the robot that answers 200 while the policy server is well; "" where it is enough that it
            runs.
        lock_file: While this file is there, the policy server must not be restarted; "" for none.
        state_file: A file in which the robot's controller says {"moving": false, "battery": 80}; "" for none. What is
            older than `state_s` counts as moving.
        battery: The least, in percent.
        window: Hours by the robot's clock in which it may be restarted, such as "22:00-06:00"; "" for any.
        bytes_per_s: What downloads may take of the line, None for all.
        slot_bytes_max: The largest release that is taken.
        certificate: File of the authority that signed the server's certificate, "" for the machine's own.
    """

    fits: Embodiment = field(default_factory=Embodiment)
    command: tuple[str, ...] = ()
    health: str = ""
    lock_file: str = ""
    state_file: str = ""
    state_s: float = 30.0
    battery: float = 0.0
    window: str = ""
    bytes_per_s: float | None = None
    slot_bytes_max: int = 64 << 30
    certificate: str = ""
    limits: EdgeLimits = field(default_factory=EdgeLimits)

    def __post_init__(self) -> None:
        """Checks what could not work.

        Raises:
            InvalidInput: A field cannot be so.
        """
        if not self.command:
            wanted = "the policy server's command, with {slot}"
            raise InvalidInput("read the robot's configuration", on="command", got="none", wanted=wanted)
        if self.window and not _WINDOW.fullmatch(self.window):
            wanted = "such as 22:00-06:00"
            raise InvalidInput("read the robot's configuration", on="window", got=repr(self.window), wanted=wanted)

    def in_window(self, minutes: int) -> bool:
        """Returns whether a time of day is in the window.

        Args:
            minutes: Since midnight.
        """
        found = _WINDOW.fullmatch(self.window)
        if found is None:
            return True
        begin, end = int(found[1]) * 60 + int(found[2]), int(found[3]) * 60 + int(found[4])
        return begin <= minutes < end if begin <= end else minutes >= begin or minutes < end


def read_config(folder: Path) -> EdgeConfig:
    """Returns what `edge.json` says.

    Raises:
        NotFound: There is none.
        InvalidInput: It is wrong.
    """
    path = folder / CONFIG
    try:
        text = path.read_bytes()
    except OSError as error:
        step = 'write {"command": ["my-policy-server", "{slot}"]} into it'
        raise NotFound("read the robot's configuration", on=str(path), got="no file", next_step=step) from error
    return from_plain(EdgeConfig, loads(text), strict=True)
