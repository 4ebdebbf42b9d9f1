"""What hashes on disk are made of: today's `repr`, under names that do not follow the classes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from mainspring.data.hashed_text import hashed_text


class Kind(Enum):
    VIDEO = "video"


@dataclass(frozen=True, slots=True)
class Clip:
    name: str
    kind: Kind
    frames: int | None
    rates: tuple[float, ...] = ()


def test_text_is_that_of_repr_under_names_of_its_own() -> None:
    for value in (Clip("a'b", Kind.VIDEO, None), Clip("", Kind.VIDEO, 3, (0.5,)), (), (Clip("x", Kind.VIDEO, 1), "y")):
        assert hashed_text(value, {Clip: "Clip", Kind: "Kind"}) == repr(value)
    renamed = hashed_text(Clip("x", Kind.VIDEO, 1), {Clip: "Part", Kind: "Kept"})
    assert renamed == "Part(name='x', kind=<Kept.VIDEO: 'video'>, frames=1, rates=())"
