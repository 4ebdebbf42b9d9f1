"""SQLite redundancy checks: what a file of messages says twice, compared: rows, their numbers, its index of times.

SQLite has no checksums. `PRAGMA integrity_check` would read the file once more; this costs one pass over the index.
"""

from __future__ import annotations

import sqlite3

from mainspring.data.readers.gone import Notes, Stretch

_LOW = (1 << 32) - 1
_INDEXES_MAX = 16
_BY_TIME = ("messages(timestampasc)", "messages(timestamp)")


def told_bytes(head: bytes) -> int:
    """Returns how long a SQLite file should be, by its first 32 bytes.

    Source: sqlite.org/fileformat2.html, 1.3.

    Args:
        head: They.
    """
    page_bytes = int.from_bytes(head[16:18], "big")
    return (65_536 if page_bytes == 1 else page_bytes) * int.from_bytes(head[28:32], "big")


class RowsRead:
    """The rows of the table of messages, counted while they are read in the order of their numbers."""

    def __init__(self) -> None:
        self.count = 0
        self._odd = 0
        self._first: int | None = None
        self._last = 0
        self._low = self._high = 0

    def add(self, row: object, time_ns: int | None) -> None:
        """Takes in a row.

        Args:
            row: Its number; a damaged table may hold anything.
            time_ns: Its time; None when it holds something that no message does.
        """
        self.count += 1
        if isinstance(row, int):
            self._first = row if self._first is None else self._first
            self._last = row
        if time_ns is None or not isinstance(row, int):
            self._odd += 1
        else:
            self._low += time_ns & _LOW
            self._high += time_ns >> 32

    def compare(self, database: sqlite3.Connection, notes: Notes) -> None:
        """Notes the rows that are missing, or odd, or that the index of times tells otherwise.

        Args:
            database: Where they were read.
            notes: Takes what differs.
        """
        if self._odd:
            what = f"{self._odd:,} messages have no topic, time or content"
            notes.lose(Stretch(what=what, lost=self._odd, total=self.count, unit="messages"))
        missing = 0 if self._first is None else self._last - self._first + 1 - self.count
        if missing > 0:
            what = f"of the messages {self._first:,} to {self._last:,}, {missing:,} are missing"
            notes.lose(Stretch(what=what, lost=missing, total=missing + self.count, unit="messages"))
        for name in self._indexes(database):
            sums = f'SELECT count(*), sum(timestamp & {_LOW}), sum(timestamp >> 32) FROM messages INDEXED BY "{name}"'
            count, low, high = database.execute(sums).fetchone()
            if count != self.count:
                what = f"the index of times tells {count:,} messages, {self.count:,} are there"
                lost, total = abs(count - self.count), max(count, self.count, 1)
                notes.lose(Stretch(what=what, lost=lost, total=total, unit="messages"))
            elif count and not self._odd and (low, high) != (self._low, self._high):
                notes.lose(Stretch(what="the index of times tells other times than the messages have", doubt=True))

    def _indexes(self, database: sqlite3.Connection) -> list[str]:
        found = []
        query = "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = 'messages'"
        for row in database.execute(query).fetchmany(_INDEXES_MAX):
            name, text = map(_text, row)
            words = text.lower().replace(" ", "").replace('"', "")
            if '"' not in name and words.endswith(_BY_TIME):
                found.append(name)
        return found


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
