"""Some units on their way into the journal: their tables go into packs, their episodes become rows."""

from __future__ import annotations

from dataclasses import dataclass

from mainspring.data.episode import EpisodeRow
from mainspring.data.intake.journal import JournalEntry
from mainspring.data.intake.judge import Draft, UnitVerdict
from mainspring.data.packs import PACK_BYTES_MAX, Pack, PackPart, PackPiece, PackPlaces
from mainspring.objects import Data, ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class _Packed:
    """Bytes in one of the batch's packs."""

    pack: int
    part: PackPart


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    """A verdict whose bytes are packed."""

    key: str
    mark: int
    verdict: UnitVerdict
    columns: _Packed | None = None
    indexes: tuple[_Packed, ...] = ()


class Batch:
    """A batch in the making; for one thread.

    Args:
        store: Where its packs go.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._pack = Pack()
        self._places: list[PackPlaces] = []
        self._waiting: list[_Waiting] = []
        self.size_bytes = 0

    @property
    def line_count(self) -> int:
        """Returns how many lines it has."""
        return len(self._waiting)

    def add(self, key: str, mark: int, verdicts: tuple[UnitVerdict, ...]) -> None:
        """Adds what was found in a unit, whose files are stored already.

        Args:
            key: The unit.
            mark: How its files look.
            verdicts: All of them.

        Raises:
            StorageFull: There is no room for a pack.
        """
        for verdict in verdicts:
            if (draft := verdict.draft) is None:
                self._waiting.append(_Waiting(key=key, mark=mark, verdict=verdict))
                continue
            columns = self._packed(draft.columns)
            indexes = tuple(self._packed(index) for index in draft.indexes)
            verdict = UnitVerdict(
                name=verdict.name,
                note=verdict.note,
                draft=Draft(row=draft.row, features=draft.features, columns=b"", indexes=(), files=()),
            )
            self._waiting.append(_Waiting(key=key, mark=mark, verdict=verdict, columns=columns, indexes=indexes))

    def stored(self) -> list[JournalEntry]:
        """Returns the lines for the journal; everything they name is stored then.

        Raises:
            StorageFull: There is no room for a pack.
        """
        if self._pack.size_bytes:
            self._places.append(self._pack.store(self._store))
            self._pack = Pack()
        return [self._line(waiting) for waiting in self._waiting]

    def _packed(self, data: Data) -> _Packed:
        if self._pack.size_bytes and self._pack.size_bytes + len(data) > PACK_BYTES_MAX:
            self._places.append(self._pack.store(self._store))
            self._pack = Pack()
        self.size_bytes += len(data)
        return _Packed(pack=len(self._places), part=self._pack.add(data))

    def _line(self, waiting: _Waiting) -> JournalEntry:
        verdict = waiting.verdict
        row: EpisodeRow | None = None
        if verdict.draft and waiting.columns:
            row = verdict.draft.placed(self._piece(waiting.columns), tuple(map(self._piece, waiting.indexes)))
        return JournalEntry(
            key=waiting.key,
            mark=waiting.mark,
            name=verdict.name,
            reason=verdict.reason,
            note=verdict.note,
            row=row,
            features=verdict.draft.features if verdict.draft else None,
        )

    def _piece(self, packed: _Packed) -> PackPiece:
        return self._places[packed.pack](packed.part)
