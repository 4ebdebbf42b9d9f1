"""Finds the checkpoints that people name: `JOB[@STEP]`, of a job's id or name or an import's name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from mainspring.checkpoint import Checkpoint, durable_steps, open_checkpoint
from mainspring.domain.errors import Conflict, NotAllowed, NotFound, Unavailable, nearest
from mainspring.domain.ids import JobId, checked_name
from mainspring.domain.job import checkpoint_named
from mainspring.objects import ObjectStore, open_store

if TYPE_CHECKING:
    from mainspring.app.sdk.lab import Lab

_KNOWN_JOBS_MAX = 1_000  # Names looked through for the one that was meant.


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Durable steps of one job or import.

    Args:
        job: Under which id they lie.
        steps: The steps, newest first; at least one.
    """

    job: JobId
    steps: tuple[int, ...]


@final
class CheckpointFinder:
    """Where checkpoints are looked for: an object store, and the server that knows what jobs are called.

    Args:
        lab: The lab whose server it is.
        objects: Address of another store than the lab's own, where nobody knows names of jobs; "" for the lab's own.
    """

    def __init__(self, lab: Lab, objects: str = "") -> None:
        self.store: ObjectStore = open_store(objects) if objects else lab.objects()
        self._lab = None if objects else lab

    def job(self, name: str) -> JobId:
        """Returns the id under which a job's or import's checkpoints lie.

        Args:
            name: What it is called.

        Raises:
            NotFound: No such name has any; the nearest that has is named.
        """
        if name:
            known = JobId(checked_name(name, "a job"))
            if durable_steps(self.store, known):
                return known
            called = self._called(name)
            if called and durable_steps(self.store, called):
                return called
            if called:
                raise NotFound(
                    "find a checkpoint", on=name, got="a job that has saved none", next_step=f"ms why {name}"
                )
        raise NotFound("find a checkpoint", on=repr(name), wanted=nearest(name, self._names()))

    def unused(self, name: str) -> str:
        """Returns a name for what is imported, which no job has: what is imported would be taken for the job's.

        Args:
            name: The name.

        Raises:
            Conflict: A job has it.
        """
        called = self._called(checked_name(name, "what is imported"))
        if called is not None:
            raise Conflict("import a checkpoint", on=name, got=f"the name of {called}", wanted="another name")
        return name

    def steps(self, reference: str) -> Steps:
        """Returns the steps that `JOB[@STEP]` names: all of the job's without a step.

        Args:
            reference: What was typed.

        Raises:
            InvalidSpec: The step is no number.
            NotFound: There is no such job, or no such step.
        """
        name, step = checkpoint_named(reference)
        job = self.job(name)
        steps = durable_steps(self.store, job)
        if step is not None and step not in steps:
            there = ", ".join(map(str, steps[:20]))
            raise NotFound("find a checkpoint", on=reference, got="no such step", wanted=f"one of {there}")
        return Steps(job=job, steps=steps if step is None else (step,))

    def open(self, reference: str) -> Checkpoint:
        """Returns the checkpoint that `JOB[@STEP]` names, the newest without a step.

        Args:
            reference: What was typed.

        Raises:
            DamagedData: It does not hold together.
        """
        found = self.steps(reference)
        return open_checkpoint(self.store, found.job, found.steps[0])

    def jobs(self) -> tuple[JobId, ...]:
        """Returns the ids of all that has anything, in order."""
        keys = (seen.key.split("/") for seen in self.store.list("checkpoints"))
        return tuple(sorted({JobId(key[1]) for key in keys if len(key) > 2 and key[2] == "manifests"}))

    def _called(self, name: str) -> JobId | None:
        """Returns the id of the newest job of a name, None when nobody knows one."""
        if self._lab is None:
            return None
        try:
            return self._lab.status(name).id
        except (NotFound, Unavailable, NotAllowed):
            return None

    def _names(self) -> tuple[str, ...]:
        names: tuple[str, ...] = self.jobs()
        if self._lab is not None:
            try:
                names += tuple(view.spec.name for view in self._lab.ps(limit=_KNOWN_JOBS_MAX))
            except (NotFound, Unavailable, NotAllowed):
                return names
        return names
