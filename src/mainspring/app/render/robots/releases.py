"""Releases of policies for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from mainspring.app.render.tables import Listing, ago, facts_grid, framed, size_text
from mainspring.app.sdk.policies.releases import ReleaseDifference, ReleaseMade
from mainspring.domain.answers import ReleaseState, ReleaseView, TrustView
from mainspring.domain.answers.policies.releases import Embodiment, GateSeen

_COLOURS = {ReleaseState.PUBLISHED: "green", ReleaseState.PENDING: "yellow", ReleaseState.REVOKED: "red"}
NAMES_SHOWN_MAX = 8  # Of dimensions, in one line.


def releases_table(found: Sequence[ReleaseView], *, now_s: float) -> RenderableType:
    """Returns one row a release."""
    return Listing("RELEASE", "STATE", "CHECKPOINT", ">SIZE", "~GATES", "BY", ">AGE").add_rows(
        (
            view.release.reference,
            Text(view.state.value, style=_COLOURS[view.state]),
            view.release.content.lineage.checkpoint or ("an image" if view.release.content.image else "-"),
            size_text(view.release.content.size_bytes),
            ", ".join(_gate(gate) for gate in view.release.content.gates) or "-",
            view.release.maker,
            ago(max(0.0, now_s - view.release.made_s)),
        )
        for view in found
    )


def release_panel(view: ReleaseView, *, now_s: float) -> RenderableType:
    """Returns one release."""
    release = view.release
    content, lineage = release.content, release.content.lineage
    state = Text(view.state.value, style=_COLOURS[view.state])
    facts: dict[str, str | Text] = {
        "state": state.append(f": {view.reason}" if view.reason else "", style=""),
        "made": f"{ago(max(0.0, now_s - release.made_s))} ago by {release.maker}, for team {content.team}",
        "note": content.note,
    }
    if content.image:
        facts["image"] = f"{size_text(content.size_bytes)}, for plain clients of DDI"
    else:
        held = f"{size_text(content.size_bytes)} in {len(content.files)} files"
        facts |= {
            "weights": f"{content.dtype or 'as trained'}, {held}",
            "runtime": f"{content.runtime} or later",
            "checkpoint": lineage.checkpoint,
            "trained from": ", ".join(lineage.parents),
            "data": f"{', '.join(lineage.versions) or 'unknown'}; {lineage.episodes} episodes",
            "code": lineage.commit or lineage.code,
            **_fits(content.fits),
        }
    gates = Listing("GATE", "STANDING", "~SEEN", "~WAIVED").add_rows(
        (gate.name, gate.standing.value, gate.seen, gate.waived or "-") for gate in content.gates
    )
    files = Listing("~FILE", ">SIZE", "SHA-256").add_rows(
        (file.path, size_text(file.size_bytes), file.sha256[:16]) for file in content.files
    )
    grid = facts_grid({name: value for name, value in facts.items() if value})
    return framed(Group(grid, "", *((gates, "") if content.gates else ()), files), release.reference)


def made_text(made: ReleaseMade) -> str:
    """Returns what is told of a release that was made."""
    release = made.view.release
    size, moved = size_text(release.content.size_bytes), size_text(made.moved_bytes)
    told = f"Made {release.reference}: {size} in {len(release.content.files)} files, of which {moved} were new."
    if made.view.state is ReleaseState.PUBLISHED:
        return f"{told}\nIt is published. Check it: ms release verify {release.reference}"
    if not made.threshold:
        return f"{told}\nNobody's keys are trusted yet: ms release trust new FOLDER"
    step = f"ms release sign {release.reference} --key FILE"
    return f"{told}\nIt waits for signatures, {made.signed} of {made.threshold}: {step}"


def difference_panel(found: ReleaseDifference) -> RenderableType:
    """Returns how two releases differ."""
    facts = {
        "to move": size_text(found.moved_bytes),
        "the same": size_text(found.same_bytes),
        **{f"also {number}": words for number, words in enumerate(found.words, 1)},
    }
    rows = [("+", file.path, size_text(file.size_bytes), file.sha256[:16]) for file in found.added]
    rows += [("-", file.path, size_text(file.size_bytes), file.sha256[:16]) for file in found.gone]
    files = Listing("", "~FILE", ">SIZE", "SHA-256").add_rows(rows)
    return framed(Group(facts_grid(facts), "", files), f"{found.first}, then {found.second}")


def trust_panel(trust: TrustView) -> RenderableType:
    """Returns by whose keys releases are trusted."""
    facts: dict[str, str | Text] = {
        role: f"version {version}, until {trust.expires[role].partition('T')[0]}"
        for role, version in trust.versions.items()
    }
    signed = set(trust.signed)
    facts["people"] = ", ".join(f"{key[:12]}{' (signed)' if key in signed else ''}" for key in trust.people) or "nobody"
    if trust.awaiting:
        facts["waiting"] = f"targets with {len(signed)} of {trust.threshold} signatures"
    return framed(facts_grid(facts), "trust")


def _gate(gate: GateSeen) -> str:
    return f"{gate.name} {'waived' if gate.waived else gate.standing.value}"


def _fits(fits: Embodiment) -> dict[str, str]:
    def channels(some: Sequence[object]) -> str:
        shown = ", ".join(map(str, some[:NAMES_SHOWN_MAX]))
        return f"{len(some)}: {shown}{', ...' if len(some) > NAMES_SHOWN_MAX else ''}" if some else ""

    return {
        "robot state": channels([f"{each.name}{f' [{each.unit}]' if each.unit else ''}" for each in fits.state]),
        "robot action": channels([f"{each.name}{f' [{each.unit}]' if each.unit else ''}" for each in fits.action]),
        "rate": f"{fits.rate_hz:g} Hz" if fits.rate_hz else "",
        "cameras": ", ".join(f"{each.name} {each.width}x{each.height}" for each in fits.cameras),
        "controller": fits.controller,
    }
