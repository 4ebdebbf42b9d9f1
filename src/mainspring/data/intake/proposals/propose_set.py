"""Looks into a LeRobot dataset and proposes the options by which it would be taken in."""

from __future__ import annotations

import re
import shlex
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mainspring.data.episode import Episode, Recording
from mainspring.data.features import Features
from mainspring.data.gates.doctor import examined
from mainspring.data.loss import losses_text
from mainspring.data.options import IngestOptions
from mainspring.data.readers.episodes.lerobot import lerobot_recordings
from mainspring.data.readers.episodes.lerobot_info import info_of
from mainspring.domain.errors import InvalidInput

LOOK_EPISODES_MAX = 16  # Read to learn what ingest would say of them; of a set that is alike, one would do.
_ROUNDS_MAX = 24  # Each adds an option; a set that needs more needs a person.
_NAMED_MAX = 12
_MOST = 0.5  # Of the episodes: what fewer need is told, and not proposed for all.
_HINT = re.compile(
    r"--(?P<word>map|action|without-camera|resample|rate)[ ](?P<value>[^\s,;)]+)|--(?P<flag>stale-statistics)"
)
_NUMBER = re.compile(r"\d+")
_PLACEHOLDERS = ("COLUMN", "NAME", "HZ")


@dataclass(frozen=True, slots=True, kw_only=True)
class SetProposal:
    """What was seen in a dataset of episodes, and by which options it could be taken in.

    Args:
        name: The dataset's.
        format: Such as "LeRobot v2.1".
        rate_hz: Steps a second, as declared.
        episodes: How many it has, those left out with them.
        features: What each step holds here; None when it cannot be read.
        words: Options as they are written: ("--map", "action=actions").
        tried: How many of its episodes were read.
        sound: How many of them would be taken in by these options; their pictures were not looked at.
        reasons: Why others would not, the commonest first, with their counts.
        doubts: What a person should decide, a sentence each.
    """

    name: str
    format: str
    rate_hz: float
    episodes: int
    features: Features | None
    words: tuple[str, ...]
    tried: int
    sound: int
    reasons: tuple[str, ...]
    doubts: tuple[str, ...]

    def command(self, path: Path) -> str:
        """Returns the command that takes it in.

        Args:
            path: Where it is.
        """
        return shlex.join(("ms", "data", "ingest", str(path), "--dataset", "NAME", *self.words))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tried:
    """What came of reading some episodes."""

    episodes: int
    read: tuple[Episode, ...] = ()
    reasons: tuple[str, ...] = ()
    broken: str = ""

    @property
    def count(self) -> int:
        return len(self.read) + len(self.reasons)


def propose_set(root: Path) -> SetProposal:
    """Returns what a LeRobot dataset holds, and options by which ingest takes it.

    Args:
        root: Its folder.

    Raises:
        DamagedData: Its description cannot be read.
        InvalidInput: It is of a format that is not read.
    """
    info = info_of(root, IngestOptions())
    options, words, tried = IngestOptions(), list[str](), _Tried(episodes=0)
    rarely: dict[str, int] = {}
    for _ in range(_ROUNDS_MAX):
        tried = _tried(root, options)
        hints = _hints(tried, words)
        wanted = next((hint for hint, count in hints.items() if count >= _MOST * max(1, tried.count)), None)
        rarely = {hint: count for hint, count in hints.items() if hint != wanted}
        if wanted is None:
            break
        words += wanted.split(" ", 1)
        options = _with(options, wanted)
    first = tried.read[0] if tried.read else None
    return SetProposal(
        name=root.name,
        format=f"LeRobot {info.version}",
        rate_hz=float(info.rate),
        episodes=tried.episodes,
        features=first.features if first else None,
        words=tuple(words),
        tried=tried.count,
        sound=len(tried.read),
        reasons=(tried.broken,) if tried.broken else tuple(grouped(tried.reasons)),
        doubts=tuple(_doubts(words, rarely, tried)),
    )


def grouped(reasons: Sequence[str]) -> Iterator[str]:
    """Yields reasons that are alike but for their numbers as one, with their count, the commonest first.

    Args:
        reasons: One for each recording.
    """
    alike: dict[str, list[str]] = {}
    for reason in reasons:
        alike.setdefault(_NUMBER.sub("#", reason), []).append(reason)
    for same in sorted(alike.values(), key=len, reverse=True):
        yield f"{len(same)} episodes: {same[0]}" if len(same) > 1 else same[0]


def _tried(root: Path, options: IngestOptions) -> _Tried:
    try:
        recordings = lerobot_recordings(root, options)
    except InvalidInput as error:
        return _Tried(episodes=0, broken=str(error))
    read: list[Episode] = []
    reasons: list[str] = []
    for recording in _spread(recordings):
        with tempfile.TemporaryDirectory() as folder:
            try:
                episode = recording.read(Path(folder))
                bare = replace(episode, videos=(), features=Features(columns=episode.features.columns))
                found = list(examined(bare).reasons)
                lost = [loss for loss in episode.losses if loss.share > options.lost_max]
                found += [f"{losses_text(lost)}: --lost-max says how much may be"] if lost else []
                if found:
                    reasons.append("; ".join(found))
                else:
                    read.append(episode)
            except InvalidInput as error:
                reasons.append(str(error))
    return _Tried(episodes=len(recordings), read=tuple(read), reasons=tuple(reasons))


def _spread(recordings: Sequence[Recording]) -> Iterable[Recording]:
    """Returns a few recordings from the first to the last."""
    count = min(LOOK_EPISODES_MAX, len(recordings))
    return [recordings[place * (len(recordings) - 1) // max(1, count - 1)] for place in range(count)]


def _hints(tried: _Tried, words: Sequence[str]) -> dict[str, int]:
    """Returns the options that the reasons name, each with how many episodes it would let in."""
    given = " ".join(words)
    return Counter(
        hint
        for reason in ((tried.broken,) if tried.broken else tried.reasons)
        for hint in dict.fromkeys(map(_said, _HINT.finditer(reason)))
        if hint and hint not in given and not (hint.startswith("--resample") and "--resample" in given)
    )


def _said(match: re.Match[str]) -> str:
    if match["flag"]:
        return f"--{match['flag']}"
    return "" if match["value"].endswith(_PLACEHOLDERS) else f"--{match['word']} {match['value']}"


def _with(options: IngestOptions, hint: str) -> IngestOptions:
    word, _, value = hint.partition(" ")
    if word == "--map":
        ours, _, theirs = value.partition("=")
        return replace(options, names={**options.names, ours: theirs})
    if word == "--without-camera":
        return replace(options, without_cameras=tuple(sorted({*options.without_cameras, value})))
    if word == "--action":
        return replace(options, action=value)
    if word == "--stale-statistics":
        return replace(options, stale_statistics=True)
    if word == "--resample":
        return replace(options, resample_hz=float(value))
    return replace(options, rate_hz=float(value))


def _doubts(words: Sequence[str], rarely: dict[str, int], tried: _Tried) -> Iterator[str]:
    if any(word == "--map" for word in words):
        yield "which columns are the state and the action was guessed by their names: read --map through"
    if any(word == "--action" for word in words):
        yield "it has no action: the state of the next step would stand for it"
    if "--stale-statistics" in words:
        yield "its statistics disagree with its numbers: it was edited after they were made, or it is damaged"
    for hint, count in list(rarely.items())[:_NAMED_MAX]:
        yield f"{hint} would let in {count} of {tried.count} episodes, for a change to all"
    notes = dict.fromkeys(clause for episode in tried.read for clause in episode.note.split("; ") if clause)
    yield from list(notes)[:_NAMED_MAX]
    if tried.read and not tried.read[0].features.cameras:
        yield "there is no camera: it can train policies of state only, not of pictures"
