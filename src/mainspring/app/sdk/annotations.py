"""The verbs of `lab.data` by which people say what they think of episodes."""

from __future__ import annotations

import csv
import io
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from getpass import getuser
from pathlib import Path
from typing import Any

from mainspring import data  # Loads its names when they are used, so that other verbs start fast.
from mainspring.app.base.specs import duration_from
from mainspring.app.sdk.export import ExportVerbs
from mainspring.domain.codec import from_plain
from mainspring.domain.errors import InvalidInput, InvalidSpec, MainspringError, NotFound
from mainspring.objects.files import reported

CSV_BYTES_MAX = 64 << 20  # A hundred thousand lines of long labels are 30 MB.
CSV_COLUMNS = ("episode", "source", "success", "label", "from", "to")
_TRUTH = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}
_NANOSECONDS = 1_000_000_000
_NAMED_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What somebody says of one episode.

    Args:
        episode: Its id, or the first letters of it; "" where `source` names it.
        source: What it was called where it was read.
        success: Whether its task was done; None says nothing of it.
        label: A few words; "" for none.
        begin_s: Where it begins, after the first step; None for the beginning.
        end_s: Where it ends; None for the end.
        withdraws: Takes back what was said before, of the label and stretch where they are given.
    """

    episode: str = ""
    source: str = ""
    success: bool | None = None
    label: str = ""
    begin_s: float | None = None
    end_s: float | None = None
    withdraws: bool = False


class AnnotationVerbs(ExportVerbs):
    """How people say what they think of episodes, and look at what was said."""

    joined = "annotation"  # By which conditions ask for what was said.

    def annotate(self, name: str, *said: Said, by: str = "") -> tuple[data.Annotation, ...]:
        """Says something of episodes, and returns what was kept: all of it, in one layer, or nothing.

        Args:
            name: NAME of a version that they are in.
            *said: What, each of one episode.
            by: Who says so; you, when left out.

        Raises:
            NotFound: There is no such episode, or several.
            InvalidInput: It says nothing, or a stretch leaves its episode.
        """
        return self._kept(name, ((one, "") for one in said), by)

    def annotate_csv(self, name: str, path: Path | str, *, by: str = "") -> tuple[data.Annotation, ...]:
        """Says what a file says, line by line; all of it, in one layer, or nothing.

        Args:
            name: NAME of a version that its episodes are in.
            path: CSV with a header of `CSV_COLUMNS`, in any order: episode or source, and one more at least.
            by: Who says so; you, when left out.

        Raises:
            InvalidInput: A line is wrong, and which.
            NotFound: A line names no episode, or several.
        """
        return self._kept(name, _lines(Path(path)), by)

    def annotations(self, name: str, id: str = "") -> tuple[data.Annotation, ...]:
        """Returns what holds of a version's episodes, or of one of them; episode by episode, in the order it was said.

        Args:
            name: NAME.
            id: An episode's id, or the first letters of it.
        """
        version = data.resolve(self.store, name)
        ids = [_Known(self.store, version).named(id)] if id else None
        episodes = ids or data.episode_table(self.store, version, ["id"])["id"].to_pylist()
        return tuple(one for each in data.annotations_of(self.store, episodes).values() for one in each)

    def freeze_labels(self, name: str, *labels: str) -> data.LayerSpec:
        """Returns a layer of what is said now: a column for each label, 1 at the steps it covers, else 0.

        Args:
            name: NAME of a version.
            *labels: Which.
        """
        return data.freeze_labels(self.store, data.resolve(self.store, name), labels)

    def _kept(self, name: str, said: Iterator[tuple[Said, str]], by: str) -> tuple[data.Annotation, ...]:
        version = data.resolve(self.store, name)
        known, author = _Known(self.store, version), by or me()
        made_ns = int(self._clock.now_s() * _NANOSECONDS)
        made: list[data.Annotation] = []
        for one, where in said:
            try:
                row = known.row(known.named(one.episode, one.source))
                span = data.stretch_of(row, one.begin_s, one.end_s)
                begin_ns, end_ns = span or (None, None)
                made.append(
                    data.Annotation(
                        episode=row.id,
                        author=author,
                        made_ns=made_ns,
                        success=one.success,
                        label=one.label.strip(),
                        begin_ns=begin_ns,
                        end_ns=end_ns,
                        withdraws=one.withdraws,
                    )
                )
            except (InvalidInput, NotFound) as error:
                raise _at(where, error) from error
        data.put_annotations(self.store, made)
        return tuple(made)


class _Known:
    """A version's episodes by id and by source; rows are read as they are asked for."""

    def __init__(self, store: Any, version: data.Version) -> None:
        self._version = version
        table = data.episode_table(store, version)
        self._table = table
        found = sorted(zip(table["id"].to_pylist(), range(table.num_rows), strict=True))
        self._ids = [id for id, _ in found]
        self._at = dict(found)
        self._sources: dict[str, list[str]] = {}
        for id, source in zip(table["id"].to_pylist(), table["source"].to_pylist(), strict=True):
            self._sources.setdefault(source, []).append(id)

    def named(self, id: str, source: str = "") -> Any:
        """Returns the id of the one episode that is meant."""
        if source and not id:
            return self._only(source, self._sources.get(source, []))
        if not re.fullmatch(r"[0-9a-f]{1,64}", id):
            raise InvalidInput("find an episode", got=repr(id[:80]), wanted="an id, or its first letters")
        at = bisect_left(self._ids, id)
        return self._only(id, [one for one in self._ids[at : at + _NAMED_MAX] if one.startswith(id)])

    def row(self, id: str) -> data.EpisodeRow:
        """Returns an episode."""
        (row,) = self._table.slice(self._at[id], 1).to_pylist(maps_as_pydicts="strict")
        return from_plain(data.EpisodeRow, row)

    def _only(self, word: str, found: Sequence[str]) -> str:
        if len(found) != 1:
            got = f"several: {', '.join(one[:12] for one in found)}" if found else f"none in {self._version.name}"
            raise NotFound("find an episode", on=word[:80], got=got, next_step=f"ms data show {self._version.name}")
        return found[0]


def _lines(path: Path) -> Iterator[tuple[Said, str]]:
    with reported("read annotations", str(path)), path.open("rb") as file:
        content = file.read(CSV_BYTES_MAX + 1)
    if len(content) > CSV_BYTES_MAX:
        raise InvalidInput("read annotations", on=str(path), got="a larger file", wanted=f"{CSV_BYTES_MAX} bytes")
    try:
        reader = csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
        header = [word.strip().lower() for word in reader.fieldnames or ()]
        reader.fieldnames = header
        _check_header(path, header)
        for words in reader:
            where = f"{path}, line {reader.line_num}"
            yield _said(words, where), where
    except UnicodeDecodeError as error:
        raise InvalidInput("read annotations", on=str(path), got="no UTF-8", wanted="CSV in UTF-8") from error
    except csv.Error as error:
        raise InvalidInput("read annotations", on=str(path), got=str(error)[:200], wanted="CSV") from error


def _check_header(path: Path, header: Sequence[str]) -> None:
    named = [word for word in ("episode", "source") if word in header]
    says = [word for word in ("success", "label") if word in header]
    if not named or not says or set(header) - {*CSV_COLUMNS} or len(set(header)) < len(header):
        raise InvalidInput(
            "read annotations",
            on=f"{path}, line 1",
            got=", ".join(header)[:200] or "an empty file",
            wanted="a header: episode or source, success or label, and from and to where stretches are meant",
        )


def _said(words: Mapping[str, Any], where: str) -> Said:
    if None in words or None in words.values():
        raise InvalidInput("read annotations", on=where, got="other columns than the header has")
    told = {name: text.strip() for name, text in words.items()}
    truth = told.get("success", "").lower()
    if truth and truth not in _TRUTH:
        raise InvalidInput("read annotations", on=where, got=f"success {truth[:40]!r}", wanted="yes, no, or nothing")
    try:
        begin_s, end_s = (duration_from(text) if (text := told.get(name, "")) else None for name in ("from", "to"))
    except InvalidSpec as error:
        raise _at(where, error) from error
    return Said(
        episode=told.get("episode", ""),
        source=told.get("source", ""),
        success=_TRUTH.get(truth),
        label=told.get("label", ""),
        begin_s=begin_s,
        end_s=end_s,
    )


def _at(where: str, error: MainspringError) -> MainspringError:
    """Returns an error that says in which line it is."""
    on = ": ".join(filter(None, (where, error.on)))
    return type(error)(error.attempted, on=on, got=error.got, wanted=error.wanted, next_step=error.next_step)


def me() -> str:
    """Returns the caller's name at this machine, as a name."""
    try:
        name = getuser()
    except (OSError, KeyError):
        name = ""
    return re.sub(r"[^a-z0-9._-]", "-", name.lower()).strip("._-") or "somebody"
