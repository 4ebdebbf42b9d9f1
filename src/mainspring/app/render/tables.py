"""Tables for people, JSON for machines. Wherever chips are pretended, it says so."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from mainspring.app.render.terminal import SafeConsole, json_text
from mainspring.domain.job import Hold, JobSpec, Option
from mainspring.domain.life import JobState, ended

if TYPE_CHECKING:
    from mainspring.domain.answers import AttemptView, ClusterView, JobView
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def _console(stream: TextIO, *, stderr: bool, piped_columns: int | None) -> Console:
    known = stream.isatty() or "COLUMNS" in os.environ
    return SafeConsole(stderr=stderr, width=None if known else piped_columns)


COLUMNS_PIPED = 1_000  # One line a row, for grep and awk.
CONSOLE = _console(sys.stdout, stderr=False, piped_columns=COLUMNS_PIPED)
ERRORS = _console(sys.stderr, stderr=True, piped_columns=None)
_TRACEBACK = "Traceback (most recent call last):"  # How Python begins one.
BOX_COLUMNS_MAX = 100  # Of a frame in a file or a pipe.
WRAP_WIDTH_MIN = 16  # Below this, wrapped words are harder to read than a column fewer.
_COLOURS = {
    JobState.QUEUED.value: "yellow",
    JobState.STARTING.value: "cyan",
    JobState.RUNNING.value: "cyan",
    JobState.STOPPING.value: "yellow",
    JobState.SUCCEEDED.value: "green",
    JobState.FAILED.value: "red",
    JobState.CANCELLED.value: "dim",
}


# Shown wherever somebody sets a server or a cluster up, unless `run_as` names users.
ACCOUNT = "Jobs run under the server's account, with no wall between: whoever submits one can do what the server can."


def told_of_accounts(run_as: Mapping[str, str]) -> str:
    """Returns what whoever sets a server or a cluster up is told of the accounts that jobs run under.

    Args:
        run_as: Users by team.
    """
    return f"Jobs run as users of their teams: {', '.join(sorted(set(run_as.values())))}." if run_as else ACCOUNT


def told_of_objects(url: str, role: str) -> str:
    """Returns what the same people are told of the object store, "" of a folder: its accounts are its walls.

    Args:
        url: Where it is; "" for the home's own folder.
        role: In whose sessions agents use it.
    """
    if role:
        return f"Agents use {url} in sessions of {role}, each for its own job's part of it."
    scheme = url.partition("://")[0]
    if scheme in ("", "file") or url.startswith("/"):
        return ""
    remedy = "; with objects_role each would get its own job's part" if scheme == "s3" else ""
    return f"Agents use {url} with credentials from their environment, good for all of it{remedy}."


def show(value: object, *, as_json: bool = False, look: Callable[[], RenderableType] | None = None) -> None:
    """Prints a value: as JSON on standard output for machines, else as `look` draws it.

    Args:
        value: A wire value, or a tuple of them.
        as_json: Whether a machine reads.
        look: Draws it for people; None for a value that is text.
    """
    if as_json:
        sys.stdout.write(json_text(value, indent=2) + "\n")
        sys.stdout.flush()  # A reader that went away is noticed here and not while the interpreter ends.
    else:
        drawn = look() if look else str(value)
        CONSOLE.print(drawn, crop=False, soft_wrap=isinstance(drawn, str))


class _Boxed:
    """A frame that is no wider than people read, where no screen bounds it."""

    def __init__(self, panel: Panel) -> None:
        self._panel = panel

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not console.is_terminal:
            options = options.update_width(min(options.max_width, BOX_COLUMNS_MAX))
        yield from self._panel.__rich_console__(console, options)


class Listing:
    """A table that never cuts or folds an id, name or number, however narrow the screen.

    Args:
        headings: One a column; ">" before it aligns right, "~" lets its cells wrap, and "?" lets a screen that is too
            narrow leave the column out, the leftmost such column first.
    """

    def __init__(self, *headings: str) -> None:
        self.headings = headings
        self.rows: list[tuple[str | Text, ...]] = []

    def add_row(self, *cells: str | Text) -> None:
        """Adds a row, one cell a heading."""
        assert len(cells) == len(self.headings)
        self.rows.append(cells)

    def add_rows(self, rows: Iterable[Sequence[str | Text]]) -> Listing:
        """Adds rows, and returns the table itself."""
        for row in rows:
            self.add_row(*row)
        return self

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draws what fits; what must be shown is never cut, even where a line then passes the screen's edge."""
        widths = [self._width(column) for column in range(len(self.headings))]
        shown = list(range(len(self.headings)))
        optional = [column for column in shown if "?" in self._marks(column)]
        while optional and _together([widths[column] for column in shown]) > options.max_width:
            shown.remove(optional.pop(0))
        made = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
        for column in shown:
            marks = self._marks(column)
            made.add_column(
                self.headings[column].lstrip(">~?"),
                justify="right" if ">" in marks else "left",
                overflow="fold",
                no_wrap="~" not in marks,
                min_width=widths[column],
            )
        for row in self.rows:
            made.add_row(*(row[column] for column in shown))
        needed = _together([widths[column] for column in shown])
        yield from made.__rich_console__(console, options.update_width(max(needed, options.max_width)))

    def _marks(self, column: int) -> str:
        heading = self.headings[column]
        return heading[: len(heading) - len(heading.lstrip(">~?"))]

    def _width(self, column: int) -> int:
        """Returns the fewest screen columns that a column needs."""
        heading = max(map(len, self.headings[column].lstrip(">~?").split("\n")))
        widest = max([heading, *(cell_len(str(row[column])) for row in self.rows)])
        return min(widest, WRAP_WIDTH_MIN) if "~" in self._marks(column) else widest


def _together(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1)


def facts_grid(facts: Mapping[str, str | Text]) -> Table:
    """Returns labels beside their values."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for label, value in facts.items():
        grid.add_row(label, value)
    return grid


def framed(inside: RenderableType, title: str) -> RenderableType:
    """Returns something in a frame as wide as it needs.

    Args:
        title: Shown on the frame.
    """
    return _Boxed(Panel(inside, title=Text(title), title_align="left", expand=False))


def gist(reason: str) -> str:
    """Returns a reason for a table: of a Python traceback in it the last line alone, which says what was raised.

    Args:
        reason: The reason, on any number of lines.
    """
    before, traceback, after = reason.partition(_TRACEBACK)
    raised = [line for line in after.splitlines() if line.strip() and not line.startswith(" ")]
    return f"{before}{raised[-1]}" if traceback and raised else reason


def size_text(size_bytes: float) -> str:
    """Returns a size as people say it."""
    unit = 0
    while size_bytes >= 1_024 and unit + 1 < len(_UNITS):
        size_bytes, unit = size_bytes / 1_024, unit + 1
    return f"{size_bytes:.0f} {_UNITS[unit]}" if unit == 0 else f"{size_bytes:.1f} {_UNITS[unit]}"


def ago(seconds: float) -> str:
    """Returns a duration as people say it."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3_600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3_600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} d"


def clock_text(at_s: float, *, now_s: float) -> str:
    """Returns a moment as people say it where they are: "14:20", with the day when it is not today's."""
    at, now = time.localtime(at_s), time.localtime(now_s)
    same_day = (at.tm_year, at.tm_yday) == (now.tm_year, now.tm_yday)
    return time.strftime("%H:%M" if same_day else "%d %b %H:%M", at)


def start_text(start_s: float | None, *, exact: bool, now_s: float) -> str:
    """Returns when a job is expected to start, "-" when nobody can know and no room is kept for it.

    Args:
        exact: Whether room is kept for it from then on.
    """
    if start_s is None:
        return "after what runs there, reserved" if exact else "-"
    when = clock_text(max(start_s, now_s), now_s=now_s)
    return f"{when}, reserved" if exact else f"about {when}, estimate"


def hold_text(hold: Hold, *, now_s: float) -> str:
    """Returns who keeps something from starting, since when and why, and whether what ran ended."""
    drained = ", and what ran there ends" if hold.drain and hold.target and not hold.node else ""
    return f"{hold}, {ago(max(0.0, now_s - hold.since_s))} ago{drained}"


def asks(spec: JobSpec) -> str:
    """Returns what a job asks for, one clause a role.

    Args:
        spec: The job's spec.
    """
    return "; ".join(" or ".join(map(asked, role.options)) for role in spec.roles)


def asked(option: Option) -> str:
    """Returns what one option asks for, such as "4 x 8 h100" or "2 x 1 a100 of 60 GiB or more"."""
    elastic = f"{option.replicas_min}..{option.replicas}" if option.replicas_min < option.replicas else option.replicas
    least = f" of {option.chip_memory_gib:g} GiB or more" if option.chip_memory_gib else ""
    chips = f"{elastic} x {option.chips:g} {option.chip}{least}"
    return chips if option.chips else f"{elastic} x {option.cpus:g} CPU cores"


def where(attempt: AttemptView) -> str:
    """Returns the cluster of an attempt, marked when its chips are pretended."""
    return f"{attempt.cluster} (simulated)" if attempt.simulated else attempt.cluster


def state_text(state: JobState) -> Text:
    """Returns a job's state in its colour."""
    return Text(state.value, style=colour(state.value))


def colour(state: str) -> str:
    """Returns the colour of a job's state, "" for one that only a newer server knows."""
    return _COLOURS.get(state, "")


def states_text(job: JobView) -> Text:
    """Returns a job's state, or how many jobs of its array are in each."""
    if job.array is None or not job.array.states:
        return state_text(job.state)
    order = list(_COLOURS)
    counts = sorted(job.array.states.items(), key=lambda one: order.index(one[0]) if one[0] in order else len(order))
    return Text(", ").join(Text(f"{count} {state}", style=colour(state)) for state, count in counts)


def jobs_table(jobs: Sequence[JobView], *, now_s: float, members: bool = False) -> RenderableType:
    """Returns one row a job; an array is one row, by its first job's id.

    Args:
        jobs: Newest first.
        members: Whether each job of an array is shown by itself.
    """
    made = Listing(
        "JOB",
        "NAME",
        "?TEAM",
        "?TIER",
        "STATE",
        "?ASKS",
        "?WHERE",
        "?>NODES",
        "?>STEP",
        ">AGE",
        "?STARTS",
        "~REASON",
    )
    for job in jobs:
        name, job_id, states = job.spec.name, job.id, state_text(job.state)
        if job.array is not None and not members:
            name = f"{name.removesuffix(f'-{job.array.index}')}-[0..{job.array.count - 1}]"
            job_id, states = job.array.first, states_text(job)
        place = where(job.attempts[-1]) if job.attempts else "-"
        step = str(job.step) if job.step >= 0 else "-"
        starts = start_text(job.start_s, exact=job.exact, now_s=now_s) if job.state is JobState.QUEUED else "-"
        asked = job.spec.with_overrides(job.overrides)
        if job.hold is not None and job.state is JobState.QUEUED:
            states.append(" paused", style="yellow")
        facts = (asks(asked), place, _size(job), step, ago(now_s - job.submitted_s), starts, gist(job.reason))
        made.add_row(job_id, name, job.spec.team, asked.tier.value, states, *facts)
    return made


def _size(job: JobView) -> str:
    """Returns how many nodes a job that runs has now, and in which generation, once that is not the first."""
    if ended(job.state) or not job.attempts:
        return "-"
    newest = job.attempts[-1]
    return f"{len(newest.nodes)} gen {newest.generation}" if newest.generation > 1 else str(len(newest.nodes))


def fleet_table(clusters: Sequence[ClusterView], *, now_s: float) -> RenderableType:
    """Returns one row a cluster and chip type.

    Args:
        clusters: In name order.
        now_s: For how long a cluster has been silent.
    """
    made = Listing("CLUSTER", "?ENGINE", "CHIP", "?>NODES", "?>READY", ">CHIPS", ">IN USE", "?>$/CHIP-HOUR", "ANSWERS")
    for view in clusters:
        inventory = view.inventory
        name = f"{inventory.cluster} (simulated)" if inventory.simulated else inventory.cluster
        answers = "yes" if view.answering else f"no, for {ago(now_s - view.seen_s)}"
        if view.hold is not None:
            answers += f"; {'draining' if view.hold.drain else 'paused'} by {view.hold.by}"
        for chip in sorted({node.chip for node in inventory.nodes}):
            nodes = [node for node in inventory.nodes if node.chip == chip]
            ready = sum(node.condition.value == "ready" for node in nodes)
            used = sum(view.used_chip_milli.get(node.name, 0) for node in nodes) / 1_000
            price = f"{inventory.dollars_per_chip_hour.get(chip, 0.0):.2f}"
            counts = (str(len(nodes)), str(ready), str(sum(node.chips for node in nodes)), f"{used:g}")
            made.add_row(name, inventory.engine, chip, *counts, price, answers)
    return made
