"""Secrets in a node's memory, and what masks them in whatever is told of ranks.

Looked for are each value's lines, as they are and as JSON, Python and URLs spell them. What a program says of one in
another form (base64, a hash, letter by letter) is not found, nor are lines of fewer than `MASKED_BYTES_MIN` bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final
from urllib.parse import quote

from mainspring.domain.ids import SecretName
from mainspring.domain.wire import Detail

MASKED_BYTES_MIN = 6  # As short as a secret may be; shorter lines of longer ones are brackets and the like.
PIECE_BYTES_MAX = 1_024  # Longer lines are looked for in pieces, so that little output is ever held back.
HELD_BYTES_MAX = 64 << 10  # Of output that is one secret after another, each begun before the last has ended.
_LINE_END = re.compile(r"[\r\n]+")


@dataclass(frozen=True, slots=True)
class _Span:
    """Where in output secrets stand, and what stands there instead."""

    begin: int
    end: int
    instead: bytes


@final
class Masks:
    """What must not be told of ranks. For any thread; `add` by one at a time."""

    def __init__(self) -> None:
        self._instead: Mapping[bytes, bytes] = {}

    def add(self, values: Mapping[SecretName, str]) -> None:
        """Masks some values from now on, beside those before.

        Args:
            values: By name.
        """
        made = dict(self._instead)
        for name, value in values.items():
            for line in _LINE_END.split(value):
                for said in _spellings(line):
                    for piece in _pieces(said):
                        made.setdefault(piece, f"[secret {name}]".encode())
        self._instead = made

    def masked(self, text: str) -> str:
        """Returns text with what must not be told masked."""
        if not self._instead:
            return text
        data = text.encode(errors="surrogatepass")
        return _replaced(data, self.spans(data)).decode(errors="surrogatepass")

    def facts(self, facts: Detail) -> Detail:
        """Returns facts with what must not be told masked, in names too."""
        if not self._instead:
            return facts
        return {self.masked(name): self.masked(fact) if isinstance(fact, str) else fact for name, fact in facts.items()}

    def spans(self, data: bytes) -> Sequence[_Span]:
        """Returns where secrets stand, in order; those that overlap are one."""
        found: list[_Span] = []
        for said, instead in self._instead.items():
            at = data.find(said)
            while at >= 0:
                found.append(_Span(at, at + len(said), instead))
                at = data.find(said, at + 1)
        merged: list[_Span] = []
        for span in sorted(found, key=lambda one: (one.begin, -one.end)):
            if merged and span.begin < merged[-1].end:
                merged[-1] = _Span(merged[-1].begin, max(merged[-1].end, span.end), merged[-1].instead)
            else:
                merged.append(span)
        return merged

    def begun(self, data: bytes) -> int:
        """Returns how many bytes at the end of output may be the front of a secret that goes on."""
        line = data.rfind(b"\n") + 1  # No line of a secret holds a line end.
        most = 0
        for said in self._instead:
            at = data.find(said[:1], max(line, len(data) - len(said) + 1))
            while at >= 0 and len(data) - at > most:
                if said.startswith(data[at:]):
                    most = len(data) - at
                at = data.find(said[:1], at + 1)
        return most


@final
class MaskedOutput:
    """A program's output, masked though a secret comes in pieces: what may be the front of one is held back."""

    def __init__(self, masks: Masks) -> None:
        self._masks = masks
        self._held = b""

    def passed(self, data: bytes) -> bytes:
        """Returns what may be told by now.

        Args:
            data: What came next.
        """
        whole = self._held + data
        spans = self._masks.spans(whole)
        cut = len(whole) - self._masks.begun(whole)
        cut = min([cut, *(span.begin for span in spans if span.begin < cut < span.end)])
        if len(whole) - cut > HELD_BYTES_MAX:
            cut = len(whole)
        self._held = whole[cut:]
        return _replaced(whole[:cut], [span for span in spans if span.end <= cut])

    def rest(self) -> bytes:
        """Returns what was held back: no more will come, and most of a secret is masked like all of it."""
        held, self._held = self._held, b""
        cut, spans = len(held) - self._masks.begun(held), self._masks.spans(held)
        if len(held) - cut < MASKED_BYTES_MIN:
            return _replaced(held, spans)
        cut = min([cut, *(span.begin for span in spans if span.end > cut)])
        return _replaced(held, [*(span for span in spans if span.end <= cut), _Span(cut, len(held), b"[secret]")])


def _replaced(data: bytes, spans: Sequence[_Span]) -> bytes:
    parts, at = [], 0
    for span in spans:
        parts += [data[at : span.begin], span.instead]
        at = span.end
    return b"".join([*parts, data[at:]])


def _spellings(line: str) -> Sequence[bytes]:
    """Returns how programs may write a line, each once; those that are too short to be looked for left out."""
    spelt = (line, json.dumps(line)[1:-1], json.dumps(line, ensure_ascii=False)[1:-1], repr(line)[1:-1])
    every = dict.fromkeys(each.strip().encode() for each in (*spelt, quote(line, safe="")))
    return [each for each in every if len(each) >= MASKED_BYTES_MIN]


def _pieces(said: bytes) -> Sequence[bytes]:
    """Returns a line in pieces that may be looked for; the last one overlaps the one before, to be as long."""
    starts = range(0, len(said) - PIECE_BYTES_MAX, PIECE_BYTES_MAX)
    return [*(said[start : start + PIECE_BYTES_MAX] for start in starts), said[-PIECE_BYTES_MAX:]]
