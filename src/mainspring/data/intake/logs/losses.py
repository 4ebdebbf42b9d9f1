"""Losses by episode: which episodes of a log lack what is gone of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from mainspring.data.episode import NANOSECONDS
from mainspring.data.intake.logs.recipe import Cut, CutBy
from mainspring.data.intake.logs.segments import Segment
from mainspring.data.intake.logs.streams import Need, Stream
from mainspring.data.loss import Loss
from mainspring.data.readers.gone import Gone

NEAR_S = 0.5  # What is gone so near to an episode may be its end.
_WORDS_MAX = 3  # Of what is wrong in one topic.


def losses_of(gone: Sequence[Gone], streams: Mapping[Need, Stream], cut: Cut, segment: Segment) -> tuple[Loss, ...]:
    """Returns what an episode has lost.

    Of a log that is one episode, that is all that is gone. Of one that was cut, it is what is gone of its own time, and
    what is gone at a time that nobody knows, measured by the messages of its own time, as if all of it was theirs. What
    is gone of the topic that cuts may have cut any of them.

    Args:
        gone: What is gone of the log.
        streams: What was read of it.
        cut: How it was cut.
        segment: The episode's time.
    """
    if cut.by is CutBy.FILE:
        return _summed([one.loss for one in gone])
    by_log_time = not any(need.stamp for need in streams)  # Else its own clock, which may be any.
    cutting = (cut.topic, cut.start, cut.stop)
    near_ns = round((cut.gap_s if cut.by is CutBy.GAP else NEAR_S) * NANOSECONDS)
    found = []
    for one in gone:
        if not (one.timed and by_log_time) or (one.topic and one.topic in cutting):
            found.append(one.loss)
        elif one.begin_ns <= segment.end_ns + near_ns and one.end_ns >= segment.begin_ns - near_ns:
            found.append(_within(one, streams, segment.begin_ns, segment.end_ns))
    return _summed(found)


def garbled(streams: Mapping[Need, Stream]) -> Iterator[Gone]:
    """Yields the messages whose text is none: damage that nothing else tells.

    Args:
        streams: What was read of a log.
    """
    for need, stream in streams.items():
        if stream.garbled:
            loss = Loss(
                subject=f"topic {need.topic}",
                lost=stream.garbled,
                total=stream.count,
                unit="messages",
                what=f"the text of {need.keys or need.field} is no UTF-8",
            )
            yield Gone(topic=need.topic, loss=loss)


def _within(one: Gone, streams: Mapping[Need, Stream], begin_ns: int, end_ns: int) -> Loss:
    """Returns a loss measured by what an episode has of the same."""
    loss = one.loss
    if not loss.total:
        return loss
    if not one.topic:
        share_ns = max(min(one.end_ns, end_ns) - max(one.begin_ns, begin_ns), 0)
        return replace(loss, total=min(loss.total, max(loss.lost, 1) * max(end_ns - begin_ns, 1) // max(share_ns, 1)))
    own = [stream.time_ns for need, stream in streams.items() if need.topic == one.topic]
    held = max((int(np.count_nonzero((time_ns >= begin_ns) & (time_ns <= end_ns))) for time_ns in own), default=0)
    return replace(loss, total=min(loss.total, held + loss.lost))


def _summed(losses: Sequence[Loss]) -> tuple[Loss, ...]:
    """Returns one loss for each topic and unit."""
    found: dict[tuple[str, str, bool], list[Loss]] = {}
    for loss in losses:
        found.setdefault((loss.subject, loss.unit, loss.total == 0), []).append(loss)
    summed = []
    for same in found.values():
        words = [*dict.fromkeys(loss.what for loss in same if loss.what)]
        more = f"; and {len(words) - _WORDS_MAX} more" if len(words) > _WORDS_MAX else ""
        total = max(loss.total for loss in same)
        summed.append(
            replace(
                same[0],
                lost=min(sum(loss.lost for loss in same), total),
                total=total,
                seconds=sum(loss.seconds for loss in same),
                what="; ".join(words[:_WORDS_MAX]) + more,
            )
        )
    return tuple(summed)
