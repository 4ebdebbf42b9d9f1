"""Releases of Mainspring itself: what this one is called, which others it speaks with, and what those may say.

A release is a minor version: peers of 0.3 and 0.4 work with each other, those of 0.3 and 0.5 do not. Each states its
own in every frame (`codec.frame`), and in a header of every request and answer over HTTP. What a peer says that this
release does not know is an `Unknown` where the peer is newer, and refused from anybody else.
"""

from __future__ import annotations

import re
import reprlib
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

from mainspring.domain.errors import InvalidMessage, OtherRelease

RELEASE = "0.3.0"  # As `pyproject.toml` has it: a test compares the two.
SILENT_RELEASE = "0.2.0"  # What a peer counts as that states none: the last release that did not.
RELEASE_HEADER = "Mainspring-Release"
STATED_LENGTH_MAX = 32
KIND_LENGTH_MAX = 64
WORDS_LENGTH_MAX = 1_000
_FORM = re.compile(r"([0-9]{1,6})\.([0-9]{1,6})\.([0-9]{1,6})([a-z0-9.+-]*)")  # Major, minor, patch; PEP 440's rest.
HALF_LETTER = re.compile("[\ud800-\udfff]")  # JSON can spell half a character; UTF-8 cannot.
_WORDS = reprlib.Repr()
_WORDS.maxlevel, _WORDS.maxdict, _WORDS.maxstring, _WORDS.maxother = 4, 20, 80, 80
_KNOWN_MAX = 64  # Releases that a process meets; only what strangers make up is more.


class Skew(Enum):
    """How a peer's release stands to one's own."""

    SAME = "same"
    OLDER = "older by one"
    NEWER = "newer by one"
    BEYOND = "beyond"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """What a newer peer may say in a place where this release knows no such word: to be shown, never acted on.

    Args:
        kind: The word, at most `KIND_LENGTH_MAX` letters of it.
        words: What it said with it, as it came, at most `WORDS_LENGTH_MAX` letters of it.
    """

    kind: str
    words: str = ""

    def __post_init__(self) -> None:
        """Checks that it is bounded."""
        assert len(self.kind) <= KIND_LENGTH_MAX
        assert len(self.words) <= WORDS_LENGTH_MAX

    @classmethod
    def said(cls, kind: str, plain: object) -> Unknown:
        """Returns what a newer peer said, whatever that is: deep, long, or both.

        Args:
            kind: The word.
            plain: What came with it, None for nothing.
        """
        return cls.cut(HALF_LETTER.sub("?", kind), "" if plain is None else _WORDS.repr(plain))

    @classmethod
    def cut(cls, kind: str, words: str) -> Unknown:
        """Returns what was said, as much of it as is kept."""
        return cls(kind=kind[:KIND_LENGTH_MAX], words=words[:WORDS_LENGTH_MAX])


def member_of_its_own(kind: type[Any], word: str) -> Any:
    """Returns a word of a newer peer in the place of a member: it has a value as those have, and is none of them.

    Args:
        kind: An enum of texts.
        word: What the peer said.
    """
    word = HALF_LETTER.sub("?", word[:KIND_LENGTH_MAX])
    member = str.__new__(kind, word)
    member._name_ = member._value_ = word
    return member


@lru_cache(_KNOWN_MAX)
def skew(own: str, peer: str) -> Skew:
    """Returns how a peer's release stands to one's own.

    Args:
        own: As major.minor.patch.
        peer: What it states.

    Raises:
        InvalidMessage: It states no release.
    """
    (major, minor), (others, other) = _parts(own), _parts(peer)
    if major != others or abs(minor - other) > 1:
        return Skew.BEYOND
    return Skew.SAME if minor == other else Skew.OLDER if other < minor else Skew.NEWER


def is_newer(stated: object, peer: str, *, own: str = RELEASE) -> bool:
    """Returns whether a peer may say what this release does not know.

    Args:
        stated: What it states; None for nothing, which is what `SILENT_RELEASE` stated.
        peer: Who it is, as errors name it.
        own: One's own release.

    Raises:
        InvalidMessage: It states something that is no release.
        OtherRelease: Its release is more than one from this.
    """
    told = SILENT_RELEASE if stated is None else stated
    if not isinstance(told, str) or len(told) > STATED_LENGTH_MAX:
        raise InvalidMessage(
            "read a peer's release", on=peer, got=repr(told)[:STATED_LENGTH_MAX], wanted="such as 0.3.0"
        )
    found = skew(own, told)
    if found is Skew.BEYOND:
        behind = "this end" if _parts(told) > _parts(own) else "the other end"
        raise OtherRelease(
            "speak with a peer of another release",
            on=peer,
            got=f"Mainspring {told}{' (it states none)' if stated is None else ''}",
            wanted=f"Mainspring {own}, or one release from it",
            next_step=f"upgrade {behind}, one release after the other (docs/operations.md, Upgrades)",
        )
    return found is Skew.NEWER


def _parts(release: str) -> tuple[int, int]:
    found = _FORM.fullmatch(release)
    if found is None:
        raise InvalidMessage("read a release", got=repr(release[:STATED_LENGTH_MAX]), wanted="such as 0.3.0")
    return int(found[1]), int(found[2])
