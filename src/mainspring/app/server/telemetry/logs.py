"""Lines of a log: text for people, or one JSON object each, with the ids of what they are about.

Where they go is the standard error of the process, whose file is turned over (`output`). Nothing is in them but what
the code says: no headers, no bodies, no query of a request.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import final

from mainspring.domain.wire.telemetry import LogForm

FACTS = (
    "request_id",
    "operation",
    "status",
    "seconds",
    "holder",
    "team",
    "job_id",
    "attempt_id",
    "allocation_id",
    "agent",
    "node",
    "cluster",
)  # What a line may say beside its words; nothing else of a record does.
WORDS_LENGTH_MAX = 16_000  # Of a line, and of a traceback its end.
_log = logging.getLogger(__name__)


@final
class LineFormatter(logging.Formatter):
    """Writes one record as a line; in text a traceback takes more.

    Args:
        about: What every line of this process is about.
        now: Returns what the line is about that is written now.
    """

    def __init__(self, form: LogForm, about: Mapping[str, str], now: Callable[[], Mapping[str, str]]) -> None:
        super().__init__()
        self._form = form
        self._about = about
        self._now = now

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line."""
        own = {name: getattr(record, name) for name in FACTS if getattr(record, name, None) not in (None, "")}
        facts = {**self._about, **self._now(), **own}
        words = record.getMessage()[:WORDS_LENGTH_MAX]
        trace = self.formatException(record.exc_info)[-WORDS_LENGTH_MAX:] if record.exc_info else ""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        time = time.replace("+00:00", "Z")
        if self._form is LogForm.TEXT:
            shown = "".join(f" {name}={fact}" for name, fact in facts.items())
            return f"{time} {record.levelname} {words}{shown}" + (f"\n{trace}" if trace else "")
        line = {"time": time, "level": record.levelname.lower(), "message": words, "logger": record.name, **facts}
        return json.dumps(line | ({"exception": trace} if trace else {}), ensure_ascii=False, default=str)


def start_log(
    form: LogForm, *, about: Mapping[str, str] | None = None, now: Callable[[], Mapping[str, str]] = dict
) -> None:
    """Has everything that this process says of itself written as lines: also what nobody caught, and warnings.

    Args:
        form: As JSON it also says what went as it should: who changed what.
        about: What all of it is about.
        now: Returns what is being done now.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(form, {name: word for name, word in (about or {}).items() if word}, now))
    level = logging.INFO if form is LogForm.JSON else logging.WARNING
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for chatty in ("httpx", "httpcore", "uvicorn.access", "alembic"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    if form is LogForm.JSON:
        logging.captureWarnings(True)
        sys.excepthook = _uncaught
        threading.excepthook = _uncaught_in_a_thread


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
    else:
        _log.critical("a fault that nobody caught: %r", error, exc_info=(kind, error, trace))


def _uncaught_in_a_thread(told: threading.ExceptHookArgs) -> None:
    if told.exc_value is not None:
        _uncaught(told.exc_type, told.exc_value, told.exc_traceback)


def last_words(line: str) -> str:
    """Returns what a line of a log says, without what else JSON has of it."""
    try:
        plain = json.loads(line)
    except ValueError:
        return line
    return str(plain.get("message", line)) if isinstance(plain, dict) else line
