"""The one exception tree.

    MainspringError                 anything a caller can be told about
    ├── InvalidInput                the caller's fault: a value, file or message that cannot be accepted
    │   ├── InvalidSpec             a job spec, or a field of one
    │   ├── ImpossibleJob           a spec that no cluster known here could ever run
    │   ├── InvalidMessage          bytes on a wire that are not a known, bounded message
    │   │   └── OtherRelease        a peer whose release is more than one from this one
    │   └── DamagedData             a recording, checkpoint or dataset whose bytes do not hold together
    ├── NotFound                    a name or id that nothing here answers to
    ├── Conflict                    the thing exists already, or has moved on since the caller looked
    │   ├── IllegalTransition       a life cycle step its table does not allow
    │   ├── KeyReused               a call under a key that was drawn for another
    │   └── LimitReached            more kept waiting than a person or a team may
    ├── NotAllowed                  a token that is missing, wrong, or too weak
    └── Unavailable                 a store, server or device that does not answer; trying again may help
        ├── StorageFull             no room left where bytes must go
        ├── Busy                    a server or store that restarts, fails over, or is asked too much: soon again
        └── TooManyRequests         more at once than one caller's share

Our own fault is an `assert`, never one of these.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from functools import partial

_QUESTION, _NOTHING = "did you mean", "nothing is known by any name here"
SENTENCES = (_QUESTION, _NOTHING)  # Begin what `nearest` says: sentences, which no "wanted" belongs before.


class MainspringError(Exception):
    """Tells what was attempted, on what, what came, what was wanted, and what to do next.

    Args:
        attempted: What was being done, as a clause ("read a job spec").
        on: The thing it was done to (a path, id or field).
        got: What was found.
        wanted: What would have been accepted.
        next_step: What the reader can do now.
    """

    exit_code = 1
    wire_name = "MainspringError"  # What it is called where it travels, for good, whatever its class is called.

    def __init__(self, attempted: str, *, on: str = "", got: str = "", wanted: str = "", next_step: str = "") -> None:
        self.attempted = attempted
        self.on = on
        self.got = got
        self.wanted = wanted
        self.next_step = next_step
        super().__init__(str(self))

    def __str__(self) -> str:
        """Returns the parts that are known, one sentence."""
        wanted = "" if self.wanted.startswith(SENTENCES) else "wanted "
        parts = {"on ": self.on, "got ": self.got, wanted: self.wanted, "next: ": self.next_step}
        return "; ".join([f"could not {self.attempted}", *(label + text for label, text in parts.items() if text)])

    def __reduce__(self) -> tuple[object, ...]:
        """Keeps the parts when an error crosses a process pool."""
        parts = {"on": self.on, "got": self.got, "wanted": self.wanted, "next_step": self.next_step}
        return partial(type(self), self.attempted, **parts), ()


class InvalidInput(MainspringError):
    """A value, file or message that cannot be accepted as it is."""

    exit_code = 2
    wire_name = "InvalidInput"


class InvalidSpec(InvalidInput):
    """A job spec, or one field of it, that cannot be accepted."""

    wire_name = "InvalidSpec"


class ImpossibleJob(InvalidInput):
    """A spec that no cluster known here could ever run, however long it waited."""

    wire_name = "ImpossibleJob"


class InvalidMessage(InvalidInput):
    """Bytes on a wire that are not a known message within its bounds."""

    wire_name = "InvalidMessage"


class OtherRelease(InvalidMessage):
    """A peer whose release of Mainspring is more than one from this one: the two may mean different things."""

    wire_name = "OtherRelease"


class DamagedData(InvalidInput):
    """A recording, checkpoint or dataset whose bytes do not hold together."""

    wire_name = "DamagedData"


class NotFound(MainspringError):
    """A name or id that nothing here answers to."""

    exit_code = 3
    wire_name = "NotFound"


class Conflict(MainspringError):
    """The thing exists already, or has moved on since the caller looked."""

    exit_code = 4
    wire_name = "Conflict"


class IllegalTransition(Conflict):
    """A life cycle step its table does not allow."""

    wire_name = "IllegalTransition"


class KeyReused(Conflict):
    """A call under an idempotency key that was used for another call."""

    wire_name = "KeyReused"


class LimitReached(Conflict):
    """More kept waiting than a person, a team or the whole lab may: it helps that some of it ends."""

    wire_name = "LimitReached"


class NotAllowed(MainspringError):
    """A token that is missing, wrong, or too weak for what was asked."""

    exit_code = 5
    wire_name = "NotAllowed"


class Unavailable(MainspringError):
    """A store, server or device that does not answer; trying again may help."""

    exit_code = 6
    wire_name = "Unavailable"


class StorageFull(Unavailable):
    """No room left where bytes must go."""

    wire_name = "StorageFull"


class Busy(Unavailable):
    """A server or store that restarts, fails over or is asked too much; the same call may succeed within seconds."""

    wire_name = "Busy"


class TooManyRequests(Unavailable):
    """More at once than one caller's share; nothing was done, and a little later it may be."""

    wire_name = "TooManyRequests"


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns a clause naming the nearest known names, or all of them when they are few.

    Args:
        name: What was given.
        known: What would have been accepted.
    """
    names = sorted(set(known))
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f"{_QUESTION} {close[0]!r}?"
    return f"one of {', '.join(names[:20])}" if names else _NOTHING
