"""`ClusterKind`, the port of a kind of cluster: how one is described, opened, checked, and told to people.

An engine package declares one in its `kind.py`, which loads nothing that talks to a cluster before that is wanted. What
is joined to it here is the same for every engine: processes, SSH, threads, configuration, command line are `app`'s.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2s
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from mainspring.domain.errors import NotAllowed
from mainspring.domain.ids import ClusterName
from mainspring.domain.ports import Clock, Engine
from mainspring.domain.team import user_of
from mainspring.domain.wire.trust import CERTIFICATE_VARIABLE

if TYPE_CHECKING:
    from mainspring.domain.fleet import LaunchOrder

AGENT_WORDS = ("-m", "mainspring", "agent")
_NAME_BYTES = 8  # Half as many letters are needed to tell folders apart; sockets below them want short paths.


class ClusterSettings(Protocol):
    """What an operator says of one cluster: a frozen dataclass that checks itself, an entry of the configuration."""

    @property
    def kind(self) -> str:
        """Returns the name of its kind in the registry."""

    @property
    def name(self) -> ClusterName:
        """Returns its own name."""

    @property
    def delegated(self) -> bool:
        """Returns whether a queue of its own decides where and when."""

    @property
    def simulated(self) -> bool:
        """Returns whether its chips are pretended."""


Settings = TypeVar("Settings", bound=ClusterSettings)


class CheckResult(str, Enum):
    """How one step of a check came out."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One step of a check.

    Args:
        name: What was looked at.
        standing: How it came out; jobs can run unless one failed. A step that waits for one that failed is skipped.
        fix: What to do about it.
    """

    name: str
    standing: CheckResult
    found: str
    fix: str = ""


class OptionForm(Enum):
    """What an option of `ms cluster add` takes, and so what its field is given."""

    TEXT = "text"
    FLAG = "flag"
    COUNT = "count"
    NUMBER = "number"
    DURATION = "duration"  # Seconds; 0 where none is said.
    NAMES = "names"  # Repeated: a tuple of texts.
    PAIRS = "pairs"  # Repeated: texts by text.
    AMOUNTS = "amounts"  # Repeated: numbers by text.


@dataclass(frozen=True, slots=True, kw_only=True)
class AddOption:
    """An option of `ms cluster add`, and the field of the settings that it stands for.

    Args:
        flag: As it is typed; "" for the field's name in dashes.
        help: For people; a duration's is followed by the forms it takes.
        required: Whether it must be typed.
        default: What stands for it where nothing is typed; None for what its form has then, such as "" or 0.
        metavar: What stands for the value in the help; "" for its type.
        shown_default: What the help calls the default; "" for the default itself.
        least: The least number it takes.
    """

    field: str
    flag: str = ""
    form: OptionForm = OptionForm.TEXT
    help: str
    required: bool = False
    default: object = None
    metavar: str = ""
    shown_default: str = ""
    least: int | None = None


PRICES = AddOption(
    field="dollars_per_chip_hour",
    flag="--price",
    form=OptionForm.AMOUNTS,
    help="Price of a chip for an hour; repeat.",
    metavar="CHIP=DOLLARS",
)
CHIP_MEMORY = AddOption(
    field="chip_memory_gib",
    flag="--chip-memory",
    form=OptionForm.AMOUNTS,
    help="Memory of a chip, where the cluster does not tell it; repeat.",
    metavar="CHIP=GIB",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifests:
    """What the operators of a cluster apply before it is added; `ms cluster manifests` prints it.

    Args:
        options: Of that command.
        text: Returns it, for what was said of each option, by field.
    """

    help: str
    options: tuple[AddOption, ...]
    text: Callable[[Mapping[str, Any]], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUsers:
    """Whose jobs run as whom, where they do not run under the account of their agents.

    Args:
        run_as: Users by team; see `domain.team.user_of`.
        folder: Where theirs are on the server's machine: each of those users makes its own, and sees no other.
    """

    run_as: Mapping[str, str]
    folder: Path | None = None

    def of(self, order: LaunchOrder) -> str:
        """Returns the user that an order's ranks run as.

        Raises:
            NotAllowed: Its team has none, nor has any above it.
        """
        user = user_of(self.run_as, order.teams)
        if not user:
            raise NotAllowed(
                "launch an allocation",
                on=f"team {order.teams[0]!r}",
                got="no user to run its jobs as",
                next_step="name one under run_as in config.yaml",
            )
        return user

    @staticmethod
    def folder_name(order: LaunchOrder, index: int, *, where: str) -> str:
        """Returns a short name for the folder of a node's ranks, which nobody can guess who has not the token.

        Args:
            index: The node's place in the order.
            where: What tells one cluster's from another's.
        """
        words, key = f"{where} {order.allocation} {index}", blake2s(order.token.encode()).digest()
        return blake2s(words.encode(), digest_size=_NAME_BYTES, key=key).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineContext:
    """What an engine, or a check, is given of the process it is in.

    Args:
        environment: Variables of the process.
        certificate: What agents are to trust, as PEM text; "" for what their nodes trust.
        folder: Where a cluster may have a folder of its own, on the server; no engine on a host keeps anything.
        users: Whose jobs run as whom, None where all run under the account of their agents.
    """

    environment: Mapping[str, str]
    certificate: str
    folder: Path | None = None
    users: JobUsers | None = None
    clock: Clock

    def environment_but_ours(self) -> dict[str, str]:
        """Returns the variables of the process but those that mean something to Mainspring."""
        return {name: value for name, value in self.environment.items() if not name.startswith("MAINSPRING_")}

    def for_agents(self, kept: Mapping[str, str], python: str) -> dict[str, str]:
        """Returns the variables that agents get.

        Args:
            kept: Those of this process that they may have.
            python: Their interpreter; its folder comes first on their search path.
        """
        path = os.pathsep.join([os.path.dirname(python), kept.get("PATH", os.defpath)])
        trusted = {CERTIFICATE_VARIABLE: self.certificate} if self.certificate else {}
        return {**kept, "PATH": path, **trusted}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosting:
    """How an engine runs in a process of its own, behind threads: nothing it does can hold up a controller.

    Args:
        ssh: On which machine, as ssh names it; "" for this one.
        python: The interpreter there that has Mainspring.
        call_s: How long a call may take.
        inventory_s: How old what is known of its nodes may be before it is asked for again.
        observe_s: The same of its allocations.
        stale_s: How old either may be when it is shown; over it the cluster counts as silent.
    """

    ssh: str
    python: str
    call_s: float
    inventory_s: float
    observe_s: float
    stale_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterKind(Generic[Settings]):
    """A kind of cluster.

    Args:
        name: Its name in the registry, the configuration, and `Inventory.engine`.
        settings: What an operator says of one.
        help: Of `ms cluster add NAME`.
        options: Of that command; every other field is set in the configuration.
        engine: Opens the engine where its commands are: in the server, or in a host.
        hosting: How a host of it is reached; None where it opens in the server, as one none of whose calls wait.
        opening: The message that makes a host serve it: a codec's `message` with the fields `cluster` (the settings),
            `certificate` and `run_as` (see `JobUsers`).
        manifests: What its operators apply before one is added; None where there is nothing to.
        steps: Names of what a check looks at, in their order; none where there is nothing to set up.
        check: Yields one finding a step, as soon as it is there; the text is the URL at which agents call the server.
        facts: How a cluster is set up, by label, for people; what is "" is left out. Durations are put in words by the
            function given.
        here: Whether its nodes are always this machine.
        runs_as: Whether its agents run jobs as the users of their teams, where the server's configuration names some.
        found: Clusters that are there without being set up, for a new home.
    """

    name: str
    settings: type[Settings]
    help: str
    options: tuple[AddOption, ...]
    engine: Callable[[Settings, EngineContext], Engine]
    hosting: Callable[[Settings], Hosting] | None = None
    opening: type[Any] | None = None
    manifests: Manifests | None = None
    steps: tuple[str, ...] = ()
    check: Callable[[Settings, EngineContext, str], Iterator[Finding]] = lambda settings, context, controller: iter(())
    facts: Callable[[Settings, Callable[[float], str]], Mapping[str, str]] = lambda settings, in_words: {}
    here: bool = False
    runs_as: bool = False
    found: Callable[[], tuple[Settings, ...]] = tuple


def in_pairs(mapping: Mapping[Any, str]) -> str:
    """Returns texts by text as facts of a cluster are shown, in order."""
    return ", ".join(f"{left} = {right}" for left, right in sorted(mapping.items()))
