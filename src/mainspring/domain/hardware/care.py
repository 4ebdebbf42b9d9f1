"""Care of nodes, as a site sets it: the hooks that repair, the burn-in that lets a node come back, breakers' limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from mainspring.domain.errors import InvalidSpec
from mainspring.domain.hardware.health import Repair
from mainspring.domain.ids import ClusterName, TeamName
from mainspring.domain.job import COMMAND_WORDS_MAX, LAB

BURN_IN = "burn-in"  # What a step of a repair is called that is no rung.
ONLY = "only:"  # What a taint begins with that binds those who tolerate it: they run there, and nobody else does.
HOOK_S_MAX = 24 * 3_600.0  # A day: what takes longer is a person's.
BURN_IN_MINUTES_MAX = 24 * 60.0
WORD_LENGTH_MAX = 4_096
CLUSTER, NODE = "{cluster}", "{node}"  # In words of commands: where it is.
SWEEP = ("python", "-m", "mainspring", "probes", "sweep", "--strict", "--cluster", CLUSTER, "--node", NODE)


class Rung(str, Enum):
    """What is done of a node that failed, the least first."""

    RESTART = "restart"  # Of the programs that serve its devices.
    RESET = "reset"  # Of a device.
    REBOOT = "reboot"
    REPLACE = "replace"  # By another machine.
    VENDOR = "vendor"  # It is sent in, or somebody comes.


FIRST_RUNGS: Mapping[Repair, Rung] = {
    Repair.NONE: Rung.RESTART,
    Repair.RESTART_RANKS: Rung.RESTART,
    Repair.RESET_DEVICE: Rung.RESET,
    Repair.RESTART_NODE: Rung.REBOOT,
    Repair.CALL_PEOPLE: Rung.REPLACE,
}
"""Where the ladder begins, for what rules ask for."""


def _require(held: bool, field_name: str, got: object, wanted: str) -> None:  # noqa: FBT001
    if not held:
        raise InvalidSpec("accept a configuration", on=f"field {field_name!r}", got=repr(got)[:200], wanted=wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairHook:
    """How a site does one thing to a node: it is told by a post, or by a command on the controller's machine.

    Args:
        url: Where what is to be done is posted as JSON; an answer of 2xx says that it was done. "" for none.
        command: Program and arguments, without a shell, in which `{cluster}` and `{node}` stand for where it is; it
            reads the same JSON, and says by exit code 0 that it was done.
        limit_s: How long either may take.
        settle_s: How long after that what was found may still be found, where there is no burn-in.
    """

    url: str = ""
    command: tuple[str, ...] = ()
    limit_s: float = 600.0
    settle_s: float = 900.0

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidSpec: A field is out of its range.
        """
        _require(bool(self.url) != bool(self.command), "url", self.url or self.command, "a url or a command")
        web = self.url.startswith(("https://", "http://")) and self.url.isprintable() and " " not in self.url
        _require(not self.url or web, "url", self.url[:80], "http(s)://HOST...")
        _check_command(self.command)
        _require(0 < self.limit_s <= HOOK_S_MAX, "limit_s", self.limit_s, f"over 0, to {HOOK_S_MAX:g}")
        _require(0 <= self.settle_s <= HOOK_S_MAX, "settle_s", self.settle_s, f"0 to {HOOK_S_MAX:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnIn:
    """The work by which a node shows that it is well: a job there, with all of its chips, that ends well or does not.

    Args:
        command: Program and arguments, in which `{cluster}` and `{node}` stand for where it is.
        minutes: About how long it works; `--minutes` is added to the command for it where that is our own sweep.
        limit_minutes: After how long, its start included, it has failed.
        team: Who is charged.
        new_nodes: Whether nodes that come new to a cluster are kept closed until they passed.
    """

    command: tuple[str, ...] = SWEEP
    minutes: float = 10.0
    limit_minutes: float = 60.0
    team: TeamName = LAB
    new_nodes: bool = False

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidSpec: A field is out of its range.
        """
        _check_command(self.command)
        _require(bool(self.command), "command", self.command, "a program, its arguments")
        most = BURN_IN_MINUTES_MAX
        _require(0 < self.minutes <= most, "minutes", self.minutes, f"over 0, to {most:g}")
        least = self.minutes
        _require(least <= self.limit_minutes <= most, "limit_minutes", self.limit_minutes, f"{least:g} to {most:g}")

    @property
    def words(self) -> tuple[str, ...]:
        """Returns the command, told how long to work."""
        return (*self.command, "--minutes", f"{self.minutes:g}") if self.command == SWEEP else self.command


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerLimits:
    """How much of a cluster health may close within five minutes.

    Args:
        percent: Of its nodes.
        least: And of a small cluster so many.
        leaf_percent: Of the nodes of one leaf, which hang on one switch; one at least.
    """

    percent: float = 5.0
    least: int = 2
    leaf_percent: float = 50.0

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidSpec: A field is out of its range.
        """
        for name in ("percent", "leaf_percent"):
            part = getattr(self, name)
            _require(0 < part <= 100, name, part, "over 0, to 100")
        _require(1 <= self.least <= 1_000, "least", self.least, "1 to 1000")

    def most(self, nodes: int) -> int:
        """Returns how many of a cluster's nodes may be closed."""
        return max(self.least, int(nodes * self.percent / 100))

    def most_of_leaf(self, nodes: int) -> int:
        """Returns how many of a leaf's nodes may be closed."""
        return max(1, int(nodes * self.leaf_percent / 100))


USUAL_LIMITS = BreakerLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class CareRules:
    """What a site's operator says of the care of nodes.

    Args:
        repairs: What can be done to nodes in quarantine, by rung; a rung that has no hook is passed over.
        burn_in: What lets a node come back from quarantine; None where its watchers' word, or its time, does.
        breakers: Limits by cluster; others have the usual ones.
    """

    repairs: Mapping[Rung, RepairHook] = field(default_factory=dict)
    burn_in: BurnIn | None = None
    breakers: Mapping[ClusterName, BreakerLimits] = field(default_factory=dict)

    @property
    def comes_back_by_repair(self) -> bool:
        """Returns whether a node in quarantine is let back by what was done to it, and by nothing else but people."""
        return self.burn_in is not None or bool(self.repairs)

    def limits_of(self, cluster: ClusterName) -> BreakerLimits:
        """Returns the limits of a cluster's breaker."""
        return self.breakers.get(cluster, USUAL_LIMITS)


def put_in(words: tuple[str, ...], *, cluster: str, node: str) -> tuple[str, ...]:
    """Returns the words of a command that say where it is."""
    return tuple(word.replace(CLUSTER, cluster).replace(NODE, node) for word in words)


def _check_command(words: tuple[str, ...]) -> None:
    _require(len(words) <= COMMAND_WORDS_MAX, "command", len(words), f"at most {COMMAND_WORDS_MAX} words")
    plain = all(word and "\0" not in word and len(word) <= WORD_LENGTH_MAX for word in words)
    _require(plain, "command", words, f"words of 1 to {WORD_LENGTH_MAX} letters")
