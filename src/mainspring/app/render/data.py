"""Tables of datasets, versions and episodes, and of what is done with them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from rich.console import Group, RenderableType
from rich.tree import Tree

from mainspring import data  # Loads its names when they are used, so that other verbs start fast.
from mainspring.app.render.tables import Listing, ago, facts_grid, framed, size_text
from mainspring.app.sdk.data import SplitReport
from mainspring.domain.answers import ArrivalView, ClipView

REASONS_SHOWN = 20  # Of what was left out; the rest is counted here and listed by --json.
EPISODES_SHOWN = 20
NAMES_SHOWN = 12
_NANOSECONDS = 1_000_000_000
_NUMBER = re.compile(r"\d+")
_DAY_NS = 86_400 * _NANOSECONDS


def report_panel(report: data.IngestReport) -> RenderableType:
    """Returns what came of an ingest."""
    known = f", {report.known} known before" if report.known else ""
    read = report.recordings - report.known
    rates = f" ({report.recordings_per_s:.3g} a second, {size_text(report.bytes_per_s)}/s)" if read else ""
    facts = {
        "frozen": report.version.name if report.version else "nothing: no recording was sound",
        "sound": f"{report.episodes} episodes, {report.frames} steps ({report.added} new)",
        "read": f"{read} recordings in {ago(report.seconds)}{rates}{known}",
        "left out": str(report.refused),
    }
    if report.version and not report.version.features.cameras:
        facts["of use for"] = "policies of state only: there is no camera, so nothing that sees can be trained on it"
    parts: list[RenderableType] = [facts_grid(facts)]
    parts += _reasons("left out:", [(left.source, left.reason) for left in report.left_out], report.refused)
    parts += _reasons("taken in, but:", [(one.source, one.note) for one in report.noted], len(report.noted))
    return framed(Group(*parts), f"dataset {report.dataset}")


def _reasons(heading: str, found: Sequence[tuple[str, str]], count: int) -> list[RenderableType]:
    """Returns reasons, those that are alike but for their numbers as one line."""
    alike: dict[str, list[tuple[str, str]]] = {}
    for source, reason in found:
        alike.setdefault(_NUMBER.sub("#", reason.replace(source, "")), []).append((source, reason))
    lines = [heading] if alike else []
    shown = sorted(alike.values(), key=lambda same: (-len(same), same[0]))[:REASONS_SHOWN]
    for same in shown:
        source, reason = same[0]
        lines.append(f"  {source}: {reason}" if len(same) == 1 else f"  {len(same)} like {source}: {reason}")
    if (rest := count - sum(map(len, shown))) > 0 and lines:
        lines.append(f"  and {rest} more: --json lists them")
    return ["\n".join(lines)] if lines else []


def round_line(report: data.IngestReport) -> str:
    """Returns what one round of a watch brought.

    Args:
        report: The round's.
    """
    name = report.version.name if report.version else "nothing frozen"
    refused = f", {report.refused} left out" if report.refused else ""
    lines = [f"{name}: {report.added} new episodes of {report.recordings} recordings{refused}"]
    lines += [f"  {left.source}: {left.reason}" for left in report.left_out[:REASONS_SHOWN]]
    return "\n".join(lines)


def versions_table(versions: Sequence[data.Version]) -> Listing:
    """Returns datasets, one line each.

    Args:
        versions: The newest of each.
    """
    return Listing("DATASET", ">VERSION", ">EPISODES", ">STEPS", "?>TIME", "?>SIZE", "~FEATURES").add_rows(
        (
            *(each.dataset, str(each.number), str(each.episodes), str(each.frames), ago(each.seconds)),
            *(size_text(each.size_bytes), str(each.features)),
        )
        for each in versions
    )


def history_table(versions: Sequence[data.Version]) -> Listing:
    """Returns a dataset's versions, newest first.

    Args:
        versions: Oldest first.
    """
    made = Listing("VERSION", ">EPISODES", ">LOST", ">STEPS", "?>SIZE", "BY", "~OF", "?~WAIVED")
    for each in reversed(versions):
        inputs = ", ".join(dict.fromkeys(name for name in (each.parent, *each.origin.inputs) if name))
        of = f"{inputs}: {each.origin.detail}" if inputs and each.origin.kind in ("filter", "split") else inputs
        waived = "; ".join(f"{waiver.gate} by {waiver.by}: {waiver.reason}" for waiver in each.waivers)
        counts = (str(each.episodes), str(each.lossy) if each.lossy else "-", str(each.frames))
        made.add_row(each.name, *counts, size_text(each.size_bytes), each.origin.kind, of, waived)
    return made


def version_panel(
    version: data.Version, rows: Sequence[data.EpisodeRow], fresh: data.Freshness, pins: Sequence[data.Pin]
) -> RenderableType:
    """Returns one version: what it holds, and its first episodes.

    Args:
        rows: Some of its episodes.
        fresh: How fresh what it brought was.
    """
    facts = {
        "episodes": f"{version.episodes} ({version.frames} steps, {ago(version.seconds)})",
        "lost": f"something, in {version.lossy} of {version.episodes} episodes" if version.lossy else "",
        "size": size_text(version.size_bytes),
        "features": str(version.features),
        "tasks": "; ".join(version.tasks),
        "made by": _origin(version.origin),
        "made of": ", ".join(dict.fromkeys(name for name in (version.parent, *version.origin.inputs) if name)),
        "fresh": f"{fresh.episodes} new, {ago(fresh.median_s)} from arrival to trainable (95%: {ago(fresh.late_s)})"
        if fresh.episodes
        else "",
        "pinned": "; ".join(f"{pin.owner}: {pin.reason}" for pin in pins),
        "waived": "; ".join(f"{waiver.gate} by {waiver.by}: {waiver.reason}" for waiver in version.waivers),
        "id": version.id,
    }
    framed_facts = framed(facts_grid({label: text for label, text in facts.items() if text}), version.name)
    listed = Listing("EPISODE", "~SOURCE", "?>HZ", "?SUCCESS", ">STEPS", ">TIME", "~TASK").add_rows(
        (
            *(row.id[:12], row.source, f"{row.rate_hz:g}", _verdict(success=row.success)),
            *(str(row.frames), f"{row.seconds:.1f} s", row.task),
        )
        for row in rows
    )
    return Group(framed_facts, listed) if rows else framed_facts


def episode_panel(
    row: data.EpisodeRow, features: data.Features, annotations: Sequence[data.Annotation] = ()
) -> RenderableType:
    """Returns one episode's facts, and what was said of it."""
    facts = {
        "source": row.source,
        "task": row.task,
        "robot": row.robot,
        "success": _verdict(success=row.success),
        "length": f"{row.frames} steps, {row.seconds:.3f} s at {row.rate_hz:g} Hz",
        "started": _moment(row.started_ns),
        "arrived": _moment(row.arrived_ns),
        **{column.name: _names(column.names) for column in features.columns},
        **{camera.name: f"camera, {camera.width}x{camera.height}" for camera in features.cameras},
        **{key: str(value) for key, value in sorted(row.metadata.items())},
        "said": "\n".join(f"{_said_text(one)}  {one.author}, {_moment(one.made_ns)}" for one in annotations),
        "files": "\n".join(f"{raw.name} ({size_text(raw.blob.size_bytes)})" for raw in row.raw),
    }
    return framed(facts_grid({label: text for label, text in facts.items() if text}), f"episode {row.id}")


def annotations_table(annotations: Sequence[data.Annotation]) -> Listing:
    """Returns what was said of episodes."""
    return Listing("EPISODE", "FROM", "TO", "SUCCESS", "~LABEL", "BY", "WHEN").add_rows(
        (
            one.episode[:12],
            *((f"{edge / 1e9:.3f} s" for edge in one.span) if one.span else ("-", "-")),
            *(_verdict(success=one.success), one.label, one.author, _moment(one.made_ns)),
        )
        for one in annotations
    )


def clips_table(clips: Sequence[ClipView]) -> Listing:
    """Returns clips that robots told of."""
    return Listing(
        "CLIP", "ROBOT", "RELEASE", "RING", "TRIGGER", "PRIORITY", "BEGUN", "TIME", "SIZE", "WHERE"
    ).add_rows(
        (
            *(one.clip.id[:12], one.clip.robot, one.clip.release, one.clip.ring, ", ".join(one.clip.triggers)),
            *(one.clip.priority.value, _moment(one.clip.begun_ns)),
            f"{(one.clip.ended_ns - one.clip.begun_ns) / _NANOSECONDS:.1f} s",
            *(size_text(one.clip.size_bytes), one.way.value),
        )
        for one in clips
    )


def _said_text(one: data.Annotation) -> str:
    verdict = {True: "success", False: "failure", None: ""}[one.success]
    stretch = f"{one.span[0] / 1e9:.3f} s to {one.span[1] / 1e9:.3f} s" if one.span else ""
    return ", ".join(filter(None, (verdict, one.label, stretch)))


def proposal_look(proposal: data.Proposal | data.TableProposal) -> RenderableType:
    """Returns what a log or a folder of tables holds, and the recipe that was made for it."""
    if isinstance(proposal, data.TableProposal):
        return Group(f"{proposal.episodes} tables", "", proposal.text)
    made = Listing("TOPIC", "?TYPE", ">MESSAGES", ">HZ", ">LONGEST GAP", "~PROBLEM")
    for seen in proposal.topics:
        jumps = f"time jumps back {seen.backwards} times" if seen.backwards else ""
        problem = "; ".join(part for part in (seen.topic.problem, jumps) if part)
        rate = f"{seen.rate_hz:.4g}" if seen.rate_hz else "-"
        if seen.rate_hz and not seen.steady:
            rate += f" irregular ({seen.near_s:.2g} to {seen.far_s:.2g} s apart)"
        gap = f"{seen.gap_s:.3f} s" if seen.messages > 1 else "-"
        made.add_row(seen.topic.name, seen.topic.type, str(seen.messages), rate, gap, problem)
    told = f"{proposal.name}: {proposal.seconds:.1f} s" + ("" if proposal.whole else ", not read to its end")
    parts: list[RenderableType] = [told, made, ""]
    if proposal.damage:
        parts.insert(1, f"damaged: {proposal.damage}")
    if any(seen.topic.type == "mainspring.Vector" for seen in proposal.topics):
        parts.append("Recordings of our own recorder need no recipe: ms data ingest takes them as they are.")
    return Group(*parts, proposal.text)


def set_proposal_look(proposal: data.SetProposal, path: Path) -> RenderableType:
    """Returns what a dataset of episodes holds, and the command that takes it in."""
    facts = {
        "format": f"{proposal.format}, {proposal.episodes} episodes at {proposal.rate_hz:g} Hz",
        "features": str(proposal.features) if proposal.features else "",
        "tried": f"{proposal.sound} of {proposal.tried} episodes that were read would be taken in, pictures unseen",
    }
    parts: list[RenderableType] = [facts_grid({label: text for label, text in facts.items() if text})]
    for heading, lines in (("left out:", proposal.reasons), ("decide:", proposal.doubts)):
        if lines:
            parts.append("\n".join([heading, *(f"  {line}" for line in lines[:REASONS_SHOWN])]))
    return Group(framed(Group(*parts), f"set {proposal.name}"), proposal.command(path))


def difference_look(difference: data.Difference) -> RenderableType:
    """Returns what differs between two versions."""
    added, removed = difference.added, difference.removed
    lines = [
        f"{difference.before} -> {difference.after}: {added.num_rows} added, {removed.num_rows} removed, "
        f"{difference.kept} in both"
    ]
    if difference.features_before != difference.features_after:
        lines.append(f"features {difference.features_before} -> {difference.features_after}")
    made = Listing("", "EPISODE", "~SOURCE", "?SUCCESS", ">STEPS", ">TIME", "~TASK")
    for mark, table in (("+", added), ("-", removed)):
        for row in table.slice(0, EPISODES_SHOWN).to_pylist():
            counts = (_verdict(success=row["success"]), str(row["frames"]), f"{row['seconds']:.1f} s")
            made.add_row(mark, row["id"][:12], row["source"], *counts, row["task"])
        if table.num_rows > EPISODES_SHOWN:
            made.add_row(mark, f"and {table.num_rows - EPISODES_SHOWN} more", "", "", "", "", "")
    return Group("\n".join(lines), made) if made.rows else "\n".join(lines)


def lineage_tree(name: str, up: Sequence[data.Link], down: Sequence[data.Link]) -> RenderableType:
    """Returns what made a version, and what was made of it."""
    tree = Tree(name)
    for heading, links in (("made of", up), ("used by", down)):
        if not links:
            tree.add(f"{heading}: nothing known")
            continue
        by_near: dict[str, list[data.Link]] = {}
        for link in links:
            by_near.setdefault(link.of, []).append(link)
        _grow(tree.add(heading), name, by_near, set())
    return tree


def _grow(branch: Tree, near: str, links: Mapping[str, Sequence[data.Link]], shown: set[str]) -> None:
    for link in links.get(near, ()):
        words = link.id if link.kind == "version" else f"{link.kind} {link.id}"
        again = link.kind == "version" and link.id in shown
        leaf = branch.add(f"{words} (see above)" if again and link.id in links else words)
        if link.kind == "version" and not again:
            shown.add(link.id)
            _grow(leaf, link.id, links, shown)


def split_look(report: SplitReport) -> RenderableType:
    """Returns how a version falls into two sides."""
    facts = {"version": report.version, "train": f"{report.trained} episodes", "holdout": f"{report.held_out} episodes"}
    for side, version in (("train", report.train), ("holdout", report.holdout)):
        facts[side] += f", frozen as {version.name}" if version else ""
    return facts_grid(facts)


def mixture_table(mixtures: Sequence[data.Mixture]) -> Listing:
    """Returns mixtures, a line for each of their versions.

    Args:
        mixtures: In order of name.
    """
    return Listing("MIXTURE", "VERSION", ">SHARE").add_rows(
        (mixture.name, component.version, f"{100 * component.share:.1f}%")
        for mixture in mixtures
        for component in mixture.components
    )


def candidates_look(
    found: Sequence[data.VersionCandidate], findings: Mapping[str, Sequence[data.Finding]]
) -> RenderableType:
    """Returns what waits to become a version, and what keeps it back.

    Args:
        findings: By candidate's id.
    """
    return Listing("CANDIDATE", ">EPISODES", "BY", "~KEPT BACK BY").add_rows(
        (
            *(each.id[:12], str(each.episodes), each.origin.kind),
            "\n".join(map(str, findings[each.id])) or "nothing: publish it",
        )
        for each in found
    )


def gc_look(report: data.GcReport) -> RenderableType:
    """Returns what a garbage collection found and did."""
    would = "would delete" if report.dry_run else "deleted"
    facts = {
        "alive": f"{report.alive.objects} blobs, {size_text(report.alive.size_bytes)}",
        "too young": f"{report.young.objects} blobs, {size_text(report.young.size_bytes)}",
        would: f"{report.garbage.objects} blobs, {size_text(report.garbage.size_bytes)}, "
        f"and {len(report.documents)} documents",
        "versions freed": ", ".join(report.freed[:REASONS_SHOWN]),
        "left for later": str(report.left) if report.left else "",
    }
    return facts_grid({label: text for label, text in facts.items() if text})


def view_look(manifest: data.ViewManifest) -> RenderableType:
    """Returns a view and its sides."""
    recipe = manifest.recipe
    frames = f"{recipe.image_size} pixels, {recipe.codec}" + (
        f" in groups of {recipe.gop}" if recipe.codec == "h264" else ""
    )
    sides = {
        name: f"{split.episodes} episodes, {split.rows} steps, {len(split.shards)} shards"
        for name, split in sorted(manifest.splits.items())
    }
    cameras = ", ".join(camera.name for camera in manifest.features.cameras)
    return facts_grid({"view": manifest.id, **sides, "frames": f"{cameras}: {frames}" if cameras else "no cameras"})


def arrivals_table(arrivals: Mapping[str, ArrivalView]) -> Listing:
    """Returns where recordings that were sent stand."""
    return Listing("FILE", "STANDING", "~REASON").add_rows(
        (name, view.standing.value, view.reason) for name, view in arrivals.items()
    )


def _origin(origin: data.Origin) -> str:
    return f"{origin.kind}: {origin.detail}" if origin.detail not in ("", "native") else origin.kind


def _verdict(*, success: bool | None) -> str:
    return "-" if success is None else "yes" if success else "no"


def _names(names: Sequence[str]) -> str:
    more = f", and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return f"{len(names)}: {', '.join(names[:NAMES_SHOWN])}{more}"


def _moment(time_ns: int) -> str:
    """Returns a time where people are, "" for one of the first day: of such a recording only the length is known."""
    at = datetime.fromtimestamp(time_ns / _NANOSECONDS)
    return f"{at:%Y-%m-%d %H:%M:%S}" if time_ns > _DAY_NS else ""
