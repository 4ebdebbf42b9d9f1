"""Judges candidates before they are published, and keeps what was found and who let it pass all the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mainspring.data.catalog.log import Version, VersionCandidate, Waiver, resolve
from mainspring.data.catalog.versions import publish
from mainspring.data.gates.distribution import shifts, sketch_of
from mainspring.domain.codec import decode, encode
from mainspring.domain.errors import Conflict, InvalidInput, NotFound
from mainspring.domain.ports import Clock
from mainspring.objects import ObjectStore

COUNTS = "counts"
DISTRIBUTION = "distribution"
DAMAGE = "damage"
GATES = (COUNTS, DISTRIBUTION, DAMAGE)
LOST_MAX = 0.1  # Share of a parent's episodes that a version made anew may lack without a word.
LOSSY_MAX = 0.1  # Share of new episodes whose recordings have lost something: more is no accident but a broken disk.
CHOSEN = ("filter", "split")  # Versions that are meant to hold fewer episodes, and others in them.
_NAMED_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What keeps a gate closed.

    Args:
        gate: Which.
        subject: What it is about, such as "state: elbow".
        got: What the candidate has.
        wanted: What would have passed.
    """

    gate: str
    subject: str
    got: str
    wanted: str

    def __str__(self) -> str:
        """Returns one clause for people."""
        before = "before" if self.gate == DISTRIBUTION else "wanted"
        return f"{self.gate}: {self.subject} {self.got}, {before} {self.wanted}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One time that a candidate was judged.

    Args:
        dataset: Its dataset.
        candidate: Its id.
        parent: The version it was compared with, "" for none.
        findings: What keeps gates closed.
        waivers: Who let it pass all the same.
        version: What it became, "" when it was kept back.
        judged_s: When, in seconds since the Unix epoch.
    """

    dataset: str
    candidate: str
    parent: str
    findings: tuple[Finding, ...]
    waivers: tuple[Waiver, ...]
    version: str
    judged_s: float


def judge(store: ObjectStore, candidate: VersionCandidate) -> tuple[Finding, ...]:
    """Returns what keeps a candidate from being published; nothing when all gates are open.

    Args:
        store: Where it lies.
        candidate: What is judged: its new episodes, or all of them when it is to be a version by itself.

    Raises:
        NotFound: Bytes of its episodes are missing.
        DamagedData: They are not what they should be.
    """
    if not candidate.parent or candidate.origin.kind in CHOSEN:
        return ()
    try:
        parent = resolve(store, candidate.parent)
    except NotFound:
        return ()  # Deleted since: there is nothing to compare with.
    found = [*_damage(candidate, parent)]
    if parent.features != candidate.features:
        return tuple(found)  # Another dataset's, or a layer's: publishing itself refuses what does not fit.
    if candidate.whole and candidate.episodes < (1.0 - LOST_MAX) * parent.episodes:
        found.append(
            Finding(
                gate=COUNTS,
                subject="episodes",
                got=str(candidate.episodes),
                wanted=f"at least {100 - 100 * LOST_MAX:.0f} % of {parent.episodes}",
            )
        )
    before = sketch_of(store, parent.fragments, parent.features)
    found += [
        Finding(
            gate=DISTRIBUTION,
            subject=f"{shift.column} {shift.dimension} ({shift.kind})",
            got=shift.got,
            wanted=shift.wanted,
        )
        for shift in shifts(before, sketch_of(store, candidate.fragments, candidate.features), candidate.features)
    ]
    return tuple(found)


def _damage(candidate: VersionCandidate, parent: Version) -> Iterator[Finding]:
    """Tells of recordings that have begun to lose things; of those that always did, the first ingest told."""
    share_max = parent.lossy / max(1, parent.episodes) + LOSSY_MAX
    if candidate.lossy > share_max * candidate.episodes:
        yield Finding(
            gate=DAMAGE,
            subject="episodes of recordings that have lost something",
            got=f"{candidate.lossy} of {candidate.episodes}",
            wanted=f"{parent.lossy} of {parent.episodes}, at most {100 * share_max:.0f} % now",
        )


def publish_judged(
    store: ObjectStore, candidate: VersionCandidate, *, clock: Clock, waivers: Sequence[Waiver] = ()
) -> Version:
    """Returns the version that a candidate has become, if every gate is open or waived. Leaves a judgement.

    Args:
        store: Where the catalog lies.
        candidate: What is published; it stays a candidate when it is kept back.
        clock: Says when.
        waivers: Gates to pass all the same, each with a name and a reason; unused ones are not kept.

    Raises:
        InvalidInput: A waiver has no name, no reason, or is for no gate; or `publish` refuses the candidate.
        Conflict: A gate is closed and not waived; or `publish` met one.
    """
    for waiver in waivers:
        if waiver.gate not in GATES or not waiver.by.strip() or not waiver.reason.strip():
            raise InvalidInput(
                "waive a gate",
                on=waiver.gate[:80],
                got=f"by {waiver.by[:80]!r}",
                wanted=f"a gate ({', '.join(GATES)}), who waives it, and why",
            )
    findings = judge(store, candidate)
    closed = {finding.gate for finding in findings}
    used = tuple(waiver for waiver in waivers if waiver.gate in closed)
    kept_back = closed - {waiver.gate for waiver in used}
    version = None if kept_back else publish(store, candidate, waivers=used)
    _record(store, candidate, findings, used, version, clock)
    if version is not None:
        return version
    named = [str(finding) for finding in findings if finding.gate in kept_back]
    raise Conflict(
        "publish a version",
        on=f"candidate {candidate.id} of {candidate.dataset}",
        got="; ".join(named[:_NAMED_MAX])
        + (f"; and {len(named) - _NAMED_MAX} more" if len(named) > _NAMED_MAX else ""),
        wanted=f"episodes like those of {candidate.parent}" if kept_back - {DAMAGE} else "recordings that are whole",
        next_step=f"look at them; if they are right, waive: ms data publish {candidate.dataset} {candidate.id} "
        f"--waive {sorted(kept_back)[0]} --by NAME --reason WHY",
    )


def judgements(store: ObjectStore, dataset: str) -> tuple[Judgement, ...]:
    """Returns every time that something was judged for a dataset, oldest first.

    Args:
        store: Where they lie.
        dataset: The dataset.
    """
    found = (decode(Judgement, store.get(entry.key)) for entry in store.list(f"judgements/{dataset}"))
    return tuple(sorted(found, key=lambda judgement: judgement.judged_s))


def _record(
    store: ObjectStore,
    candidate: VersionCandidate,
    findings: tuple[Finding, ...],
    waivers: tuple[Waiver, ...],
    version: Version | None,
    clock: Clock,
) -> None:
    if not findings:
        return  # The version itself says that nothing was found; a line for each ingest would only be noise.
    now_s = clock.now_s()
    judgement = Judgement(
        dataset=candidate.dataset,
        candidate=candidate.id,
        parent=candidate.parent,
        findings=findings,
        waivers=waivers,
        version=version.name if version else "",
        judged_s=now_s,
    )
    store.put(f"judgements/{candidate.dataset}/{candidate.id}-{round(now_s * 1e6)}.json", encode(judgement))
