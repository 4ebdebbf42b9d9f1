"""Rules by which checkpoints are evaluated by themselves, and profiles of jobs that run."""

from __future__ import annotations

from mainspring.domain.codec import message
from mainspring.domain.errors import InvalidInput
from mainspring.domain.ids import JobId, TeamName
from mainspring.domain.job import DURATION_S_MAX, JobSpec
from mainspring.domain.life import JobState

CHECKPOINT = "{checkpoint}"  # What stands for "JOB@STEP" in the words of an evaluation's command.
EVERY_MAX = 1_000_000
PROFILE_STEPS_MAX = 1_000  # A trace of many steps says no more than one of a few, and fills disks.
PROFILE_RANKS_MAX = 64  # Each is some ten megabytes.
CHIPS_MAX = 100_000


@message("NewEvaluationRule")
class NewEvaluationRule:
    """Which checkpoints of a job are evaluated, how, and with how many chips at most.

    Args:
        job: A job's id, or a name: then always its newest job.
        every: Each so many of its durable checkpoints; 0 for by time.
        every_s: At most one in so many seconds, the newest; 0 for by number.
        chips_max: All of its evaluations that wait or run together ask for no more; one without chips counts as 1.
        spec: One evaluation. `{checkpoint}` in its commands becomes "JOB@STEP", which it begins from; it has the
            job's views unless it names some.
    """

    job: str
    every: int = 1
    every_s: float = 0.0
    chips_max: int = 1
    spec: JobSpec

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidInput: A field is out of its range.
        """
        by_number, by_time = 1 <= self.every <= EVERY_MAX, 0 < self.every_s <= DURATION_S_MAX
        if by_number + by_time != 1 or (not by_number and self.every) or (not by_time and self.every_s):
            got = f"every {self.every}, every {self.every_s:g} s"
            raise InvalidInput("rule evaluations", got=got, wanted="one of the two over 0, and the other 0")
        if not 1 <= self.chips_max <= CHIPS_MAX:
            raise InvalidInput("rule evaluations", on="chips_max", got=str(self.chips_max), wanted=f"1 to {CHIPS_MAX}")
        if not 1 <= len(self.job) <= 63:
            raise InvalidInput("rule evaluations", on="job", got=repr(self.job[:80]), wanted="a job's id or name")
        if not any(CHECKPOINT in word for role in self.spec.roles for word in role.command):
            got = " ".join(self.spec.roles[0].command)[:200]
            raise InvalidInput("rule evaluations", on="its command", got=got, wanted=f"{CHECKPOINT} in it")
        if self.chips_each > self.chips_max:
            got = f"an evaluation that asks for {self.chips_each}"
            raise InvalidInput("rule evaluations", got=got, wanted=f"at most {self.chips_max} chips, as the rule says")

    @property
    def chips_each(self) -> int:
        """Returns what one evaluation counts as: the most chips that it may be given, at least 1."""
        most = sum(max(option.chips * option.replicas for option in role.options) for role in self.spec.roles)
        return max(1, -int(-most // 1))


@message("NewProfile")
class NewProfile:
    """Which ranks of a job are profiled, as output and status number them, and over how many steps."""

    steps: int = 5
    ranks: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        """Checks both.

        Raises:
            InvalidInput: A number is out of its range.
        """
        if not 1 <= self.steps <= PROFILE_STEPS_MAX:
            raise InvalidInput("profile a job", got=f"{self.steps} steps", wanted=f"1 to {PROFILE_STEPS_MAX}")
        if not 1 <= len(self.ranks) <= PROFILE_RANKS_MAX or len({*self.ranks}) < len(self.ranks):
            got = f"ranks {', '.join(map(str, self.ranks[:20]))}"
            raise InvalidInput("profile a job", got=got, wanted=f"1 to {PROFILE_RANKS_MAX} that differ")


@message("ProfileView")
class ProfileView:
    """A profile that was asked for: its id, and of what."""

    id: str
    job: JobId
    steps: int
    ranks: tuple[int, ...]


@message("EvaluationRun")
class EvaluationRun:
    """One evaluation that a rule started: the job that evaluates, and what of."""

    job: JobId
    trained: JobId
    step: int
    state: JobState
    submitted_s: float
    result: dict[str, str | int | float | bool]


@message("EvaluationRuleView")
class EvaluationRuleView:
    """A rule, and the evaluations that it started, newest first."""

    name: str
    team: TeamName
    owner: str
    made_s: float
    rule: NewEvaluationRule
    runs: tuple[EvaluationRun, ...] = ()
