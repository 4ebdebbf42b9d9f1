"""Reading what people hand to a replay: bounded files, tables with line numbers, YAML read by the one codec."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TypeVar

import yaml

from mainspring.domain.codec import from_plain
from mainspring.domain.errors import InvalidInput, MainspringError, NotFound, nearest

TABLE_BYTES_MAX = 2 << 30
DOCUMENT_BYTES_MAX = 64 << 20  # `ms fleet --json` of 12,500 nodes is about 8 MB.
ROWS_MAX = 5_000_000
HEADER_MAX = 65_536

Value = TypeVar("Value")


def read_text(path: Path, what: str, *, bytes_max: int) -> str:
    """Returns a file's text.

    Args:
        what: What it should be, for messages.
        bytes_max: How large it may be.

    Raises:
        NotFound: It cannot be read.
        InvalidInput: It is too large, or not UTF-8.
    """
    try:
        with path.open("rb") as file:
            data = file.read(bytes_max + 1)
    except OSError as error:
        raise NotFound(f"read {what}", on=str(path), got=error.strerror or str(error)) from error
    if len(data) > bytes_max:
        raise InvalidInput(f"read {what}", on=str(path), got="a larger file", wanted=f"at most {bytes_max} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InvalidInput(f"read {what}", on=f"{path}, line {line}", got="other bytes", wanted="UTF-8 text") from error


def read_start(path: Path, what: str) -> str:
    """Returns the first few thousand letters of a file, to tell what it is.

    Args:
        what: What it should be, for messages.

    Raises:
        NotFound: It cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(HEADER_MAX).decode("utf-8-sig", errors="replace")
    except OSError as error:
        raise NotFound(f"read {what}", on=str(path), got=error.strerror or str(error)) from error


def read_document(path: Path, kind: type[Value], what: str) -> Value:
    """Returns what a YAML or JSON file holds.

    Args:
        kind: The type wanted: a dataclass, or a tuple of them.
        what: What it should be, for messages.

    Raises:
        NotFound: It cannot be read.
        InvalidInput: It is not YAML, or a field is unknown, missing or out of range.
    """
    plain = parse(path, read_text(path, what, bytes_max=DOCUMENT_BYTES_MAX), what)
    try:
        return from_plain(kind, plain, strict=True)
    except MainspringError as error:
        raise InvalidInput(
            f"read {what}", on=f"{error.on} of {path}" if error.on else str(path), got=error.got, wanted=error.wanted
        ) from error


def parse(path: Path, text: str, what: str) -> object:
    """Returns what YAML or JSON text says.

    Args:
        path: Where it was read, for messages.
        what: What it should be, for messages.

    Raises:
        InvalidInput: It is not YAML.
    """
    try:
        return yaml.load(text, Loader=_LOADER)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidInput(
            f"read {what}", on=str(path), got=" ".join(str(error).split())[:200], wanted="YAML or JSON"
        ) from error


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # The same language; C reads a large fleet in a tenth.


@dataclass(slots=True)
class Row:
    """One row of a table, read cell by cell; a cell that does not read names its line and column.

    Args:
        line: Where the row ends, counted from 1.
    """

    path: Path
    line: int
    cells: Mapping[str, str]

    def text(self, column: str, default: str | None = None) -> str:
        """Returns a cell.

        Args:
            default: What stands for a cell that is empty or not there; None when there must be one.

        Raises:
            InvalidInput: It is empty and must not be.
        """
        cell = (self.cells.get(column) or "").strip()
        if not cell and default is None:
            raise self.error(column, "nothing", "a value")
        return cell or default or ""

    def number(self, column: str, default: float | None = None, *, least: float = 0.0, most: float = 1e12) -> float:
        """Returns a cell that holds a number.

        Args:
            default: What stands for a cell that is empty or not there; None when there must be one.
            least: The least it may be.
            most: The most it may be.

        Raises:
            InvalidInput: It is no number, or out of range.
        """
        cell = self.text(column, "" if default is not None else None)
        if not cell:
            assert default is not None
            return default
        try:
            value = float(cell)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise self.error(column, repr(cell[:80]), f"a number, {least:g} to {most:g}")
        return value

    def whole(self, column: str, default: int | None = None, *, least: int = 0, most: int = 1_000_000_000) -> int:
        """Returns a cell that holds a whole number.

        Args:
            default: What stands for a cell that is empty or not there; None when there must be one.
            least: The least it may be.
            most: The most it may be.

        Raises:
            InvalidInput: It is no whole number, or out of range.
        """
        value = self.number(column, default, least=least, most=most)
        if value != int(value):
            raise self.error(column, f"{value:g}", "a whole number")
        return int(value)

    def error(self, column: str, got: str, wanted: str) -> InvalidInput:
        """Returns the error about a cell.

        Args:
            wanted: What it should hold.
        """
        return InvalidInput(
            "read a table", on=f"{self.path}, line {self.line}, column {column!r}", got=got, wanted=wanted
        )

    def wrong(self, error: MainspringError) -> InvalidInput:
        """Returns an error about what the row says as a whole."""
        return InvalidInput(
            error.attempted,
            on=f"{self.path}, line {self.line}" + (f": {error.on}" if error.on else ""),
            got=error.got,
            wanted=error.wanted,
        )


class Rows:
    """The rows of a CSV file.

    Args:
        what: What it should be, for messages.

    Raises:
        NotFound: It cannot be read.
        InvalidInput: It is too large, not UTF-8, or has no header.
    """

    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        self._what = what
        self._text = read_text(path, what, bytes_max=TABLE_BYTES_MAX)
        header = next(csv.reader(StringIO(self._text[:HEADER_MAX], newline=""), skipinitialspace=True), [])
        self.columns = tuple(cell.strip() for cell in header)
        if not any(self.columns) or len(set(self.columns)) < len(self.columns):
            raise InvalidInput(
                f"read {what}",
                on=f"{path}, line 1",
                got=repr(header)[:200] if header else "nothing",
                wanted="names of columns",
            )

    def require(self, known: tuple[str, ...], needed: tuple[str, ...]) -> None:
        """Checks the header.

        Args:
            known: Columns there may be.
            needed: Columns there must be.

        Raises:
            InvalidInput: One is missing or not known.
        """
        for column in needed:
            if column not in self.columns:
                raise InvalidInput(f"read {self._what}", on=f"{self.path}, line 1", got="no such column", wanted=column)
        for column in self.columns:
            if column not in known:
                raise InvalidInput(
                    f"read {self._what}",
                    on=f"{self.path}, line 1",
                    got=f"column {column!r}",
                    wanted=nearest(column, known),
                )

    def __iter__(self) -> Iterator[Row]:
        """Yields every row that is not empty."""
        reader = csv.reader(StringIO(self._text, newline=""), skipinitialspace=True, strict=True)
        try:
            next(reader, None)
            for count, cells in enumerate(reader):
                if count >= ROWS_MAX:
                    raise InvalidInput(
                        f"read {self._what}", on=str(self.path), got="more rows", wanted=f"<= {ROWS_MAX}"
                    )
                if not any(cells):
                    continue
                if len(cells) != len(self.columns):
                    raise InvalidInput(
                        f"read {self._what}",
                        on=f"{self.path}, line {reader.line_num}",
                        got=f"{len(cells)} cells",
                        wanted=f"{len(self.columns)}: {', '.join(self.columns)}"[:200],
                    )
                yield Row(self.path, reader.line_num, dict(zip(self.columns, cells, strict=True)))
        except csv.Error as error:
            raise InvalidInput(
                f"read {self._what}",
                on=f"{self.path}, line {reader.line_num}",
                got=str(error),
                wanted="a row of a CSV file",
            ) from error
