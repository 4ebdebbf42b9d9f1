"""Profiles for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType

from mainspring.app.render.tables import Listing, facts_grid, framed, size_text
from mainspring.app.sdk.profiles import JobProfile
from mainspring.train.profile.summary import ProfileDifference, ProfileSummary

_BARS = "▁▂▃▄▅▆▇█"
_CURVE_COLUMNS = 40
_CHANGES_SHOWN = 15


def profiles_group(found: Sequence[JobProfile]) -> RenderableType:
    """Returns one panel a rank."""
    return Group(*(_panel(each) for each in found))


def _panel(found: JobProfile) -> RenderableType:
    summary = found.summary
    facts = {
        "steps": f"{summary.steps} in {_time(summary.seconds)}: {_time(summary.mean_step_s)} each",
        "time": shares_text(summary),
        **_roofline(summary),
        **_memory(summary),
        "kept": found.folder,
    }
    parts: list[RenderableType] = [facts_grid(facts)]
    if summary.top:
        rows = [
            (each.name, each.kind, str(each.count), _time(each.seconds), f"{each.share:.1%}") for each in summary.top
        ]
        parts += ["", Listing("OPERATION", "KIND", ">RUNS", ">OWN TIME", ">SHARE").add_rows(rows)]
    if summary.gaps:
        gaps = [(_time(each.at_s), _time(each.seconds), each.before or "the end") for each in summary.gaps]
        parts += ["", Listing(">AT", ">NOTHING RAN FOR", "BEFORE").add_rows(gaps)]
    parts += ["", "Try next:", *(f"  {words}" for words in summary.advice)]
    return framed(Group(*parts), f"{found.job} rank {found.rank}, {found.id} on {summary.device_kind or 'no device'}")


def shares_text(summary: ProfileSummary) -> str:
    """Returns what a step's time goes into."""
    hidden = "" if summary.overlap is None else f" ({summary.overlap:.0%} of all communication is hidden)"
    return f"compute {summary.compute:.1%}, communication {summary.communication:.1%}{hidden}, idle {summary.idle:.1%}"


def _roofline(summary: ProfileSummary) -> dict[str, str]:
    roof = summary.roofline
    if roof is None:
        return {}
    text = f"{roof.flops_per_s / 1e12:.3g} TFLOP/s at {roof.intensity:.3g} operations a byte"
    if roof.ridge is not None and roof.share is not None:
        binds = "memory binds" if roof.intensity < roof.ridge else "operations bind"
        text += f": {roof.share:.0%} of the roof there; {binds} (ridge at {roof.ridge:.0f})"
    return {"roofline": text}


def _memory(summary: ProfileSummary) -> dict[str, str]:
    if not summary.memory:
        return {}
    facts = {}
    if summary.device_bytes_most:
        limit = f" of {size_text(summary.device_bytes_limit)}" if summary.device_bytes_limit else ""
        curve = _curve([point.device_bytes for point in summary.memory])
        facts["device memory"] = f"{curve} at most {size_text(summary.device_bytes_most)}{limit}"
    host = _curve([point.host_bytes for point in summary.memory])
    return {**facts, "host memory": f"{host} at most {size_text(summary.host_bytes_most)}"}


def _curve(values: Sequence[int]) -> str:
    """Returns values as a line of bars, from the least to the most."""
    every = max(1, -(-len(values) // _CURVE_COLUMNS))
    shown = [max(values[at : at + every]) for at in range(0, len(values), every)]
    least, most = min(shown), max(shown)
    return "".join(_BARS[(value - least) * (len(_BARS) - 1) // max(1, most - least)] for value in shown)


def difference_group(found: ProfileDifference) -> RenderableType:
    """Returns how two profiles differ."""
    before, after = found.before, found.after
    rows = [
        ("a step", _time(before.mean_step_s), _time(after.mean_step_s)),
        ("compute", f"{before.compute:.1%}", f"{after.compute:.1%}"),
        ("communication", f"{before.communication:.1%}", f"{after.communication:.1%}"),
        ("idle", f"{before.idle:.1%}", f"{after.idle:.1%}"),
        ("device memory", size_text(before.device_bytes_most), size_text(after.device_bytes_most)),
        ("host memory", size_text(before.host_bytes_most), size_text(after.host_bytes_most)),
    ]
    changes = [
        (each.name, _time(each.before_s), _time(each.after_s), f"{1e3 * (each.after_s - each.before_s):+.3f} ms")
        for each in found.operations[:_CHANGES_SHOWN]
    ]
    return Group(
        Listing("", ">BEFORE", ">AFTER").add_rows(rows),
        "",
        Listing("OPERATION", ">BEFORE, A STEP", ">AFTER", ">CHANGE").add_rows(changes),
    )


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} us"
