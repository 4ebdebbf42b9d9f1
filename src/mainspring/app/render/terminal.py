"""What jobs, engines and other people wrote never steers the terminal of whoever reads it.

A terminal obeys control characters: with an escape sequence a job's name could clear a screen, set a title, or write
what looks like somebody else's line. What people are shown has none of them but line ends and tabs; a job's own output
keeps its colours and carriage returns too, as those are what a progress bar is drawn with.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from mainspring.domain.codec import to_plain

if TYPE_CHECKING:
    from typing import TextIO

_DIRECTION = "\u202a-\u202e\u2066-\u2069"  # Turn the order of the letters around them.
CONTROL = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029{_DIRECTION}]")
_CONTROL_IN_JSON = re.compile(f"[\x7f-\x9f{_DIRECTION}]")  # What JSON itself leaves as it is.
_CONTROL_IN_OUTPUT = re.compile(f"(?!\x1b\\[[0-9;:]*m)[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f{_DIRECTION}]")


@final
class SafeConsole(Console):
    """A console that draws with control characters, and prints none of those it is given.

    Args:
        stderr: Whether it writes to standard error.
        width: In columns; None to ask the terminal.
    """

    def __init__(self, *, stderr: bool, width: int | None) -> None:
        # No markup, for names and reasons hold whatever people wrote.
        super().__init__(stderr=stderr, highlight=False, markup=False, emoji=False, width=width)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yields what is drawn of something, without the control characters of its texts."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else CONTROL.sub("", text), style, control)


def json_text(value: object, *, indent: int | None = None) -> str:
    """Returns a value as JSON that a terminal can be shown.

    Args:
        value: A wire value, or a tuple of them.
        indent: Spaces of each level; None for one line.
    """
    text = json.dumps(to_plain(value), indent=indent, ensure_ascii=False)
    return _CONTROL_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def write_output(chunks: Iterable[bytes], stream: TextIO) -> bool:
    """Writes a job's output, as it is, or to a terminal without what would steer it; returns whether there was any.

    Args:
        chunks: Pieces of it, cut anywhere.
        stream: Where to.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    some = False
    for chunk in chunks:
        some = True
        if stream.isatty():
            stream.write(_CONTROL_IN_OUTPUT.sub("", decoder.decode(chunk)))
        else:
            stream.buffer.write(chunk)
        stream.flush()
    return some
