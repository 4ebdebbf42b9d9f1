"""Jobs as their owners write them: immutable specs that name chips, never a cluster; and what is said of them later."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from mainspring.domain.errors import InvalidSpec
from mainspring.domain.ids import (
    ChipName,
    ClusterName,
    JobId,
    NodeName,
    RoleName,
    SecretName,
    TeamName,
    checked_name,
    checked_secret_name,
)

ROLES_MAX = 16
OPTIONS_MAX = 16
REPLICAS_MAX = 100_000
CHIP_MEMORY_GIB_MAX = 1e5
CHIPS_PER_REPLICA_MAX = 65_536
COMMAND_WORDS_MAX = 1_024
COMMAND_BYTES_MAX = 65_536
ENVIRONMENT_MAX = 256
VIEWS_MAX = 1_000  # As many as inputs.
READS_MAX = 4  # What one session of an S3 store is for is written in 2,048 letters; grants look whether these do.
RELEASE_READ = "release:"  # Before the hash of a release that a job reads.
_SHA256 = re.compile("[0-9a-f]{64}")
SECRETS_MAX = 16  # Of a job: at their longest, half of what Linux lets a program start with.
FILE_SUFFIX = "_FILE"  # Of the variable that tells where a secret lies as a file.
CODE_SCHEME = "blake3:"  # What content ids of code begin with.
CODE_FOLDER = "code"  # Of an object store: archived trees, and when each was last submitted again.
MAIN = RoleName("main")  # The role of a simple job.
LAB = TeamName("lab")  # The root of the tenant tree until somebody names teams.
NO_TEAM, NO_CLUSTER, NO_NODE = TeamName(""), ClusterName(""), NodeName("")
ANY_CHIP = ChipName("any")  # An option that runs on whatever chip a node has, or on none.
AFTER_MAX = 1_000
TOLERATIONS_MAX = 64
DURATION_S_MAX = 10 * 365 * 86_400.0
STEP_DIGITS_MAX = 12  # As many as a checkpoint's key holds.
ARRAY_MAX = 100_000  # Jobs one request may make.
MILLI = 1_000  # Chips are counted in thousandths, so that several replicas may share one.


class JobKind(str, Enum):
    """What a job is for; it decides what ending means."""

    TRAIN = "train"
    BATCH = "batch"
    SERVICE = "service"
    INTERACTIVE = "interactive"


class Tier(str, Enum):
    """How urgent a job is."""

    CRITICAL = "critical"
    STANDARD = "standard"
    OPPORTUNISTIC = "opportunistic"

    @property
    def rank(self) -> int:
        """Returns 0 for the most urgent tier."""
        return _TIER_RANKS[self]


class Occasion(str, Enum):
    """When a job's team is told of it, at the place that the team named."""

    ENDED = "ended"
    FAILED = "failed"
    WAITS = "waits"  # It had started, and is back in the queue.
    PREEMPTED = "preempted"  # By another job, or by its cluster.


_TIER_RANKS = {tier: rank for rank, tier in enumerate(Tier)}


def _require(held: bool, field_name: str, got: object, wanted: str) -> None:  # noqa: FBT001
    if not held:
        raise InvalidSpec("accept a job spec", on=f"field {field_name!r}", got=repr(got)[:200], wanted=wanted)


def checkpoint_named(reference: str) -> tuple[str, int | None]:
    """Returns the name and the step that `NAME@STEP` refers to; no step, for the newest durable one, of `NAME`.

    Args:
        reference: What was written.

    Raises:
        InvalidSpec: The step is no number.
    """
    name, at, text = reference.partition("@")
    number = text.isascii() and text.isdigit() and len(text) <= STEP_DIGITS_MAX
    if at and not number:
        wanted = "NAME@STEP, such as train@1000"
        raise InvalidSpec("find a checkpoint", on=reference[:200], got=repr(text)[:200], wanted=wanted)
    return name, int(text) if at else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One acceptable way to run a role.

    Args:
        chip: Chip type, as the fleet names it ("h100", "v5p", "cpu"), or `ANY_CHIP`.
        chips: Chips per replica; fractions are thousandths of one shared chip; 0 for a replica that only needs `cpus`.
        cpus: CPU cores per replica; 0 asks for no particular share.
        memory_gib: Host memory per replica; 0 asks for no particular share.
        chip_memory_gib: Memory that each chip it is on must have, whoever shares that chip; 0 asks for nothing. Chips
            of which nobody knows how much they have are taken to have enough.
        replicas: How many replicas start together.
        replicas_min: The fewest the role can run with; equal to `replicas` unless the role is elastic.
        within: The lowest domain level that must hold all replicas ("node", "rack", "block", "cluster"), or None.
        prefer: The level that should hold them, when one can; else the next wider one, and so on.
        group: Replicas come in groups of this many, each inside one domain of `group_within`; 0 for no groups.
        group_within: The level that must hold each group.
        slice: Shape of TPU slice ("4x4x4"): replicas are hosts, and take whole slices of this shape only.
        tolerates: Taints of nodes that are accepted.
        speed: Useful work per chip-second, relative to the role's other options.
    """

    chip: ChipName
    chips: float = 1.0
    cpus: float = 0.0
    memory_gib: float = 0.0
    chip_memory_gib: float = 0.0
    replicas: int = 1
    replicas_min: int = 0
    within: str | None = None
    prefer: str | None = None
    group: int = 0
    group_within: str | None = None
    slice: str = ""
    tolerates: tuple[str, ...] = ()
    speed: float = 1.0

    def __post_init__(self) -> None:
        """Checks every field and completes `replicas_min`.

        Raises:
            InvalidSpec: A field is out of its range.
        """
        checked_name(self.chip, "chip")
        _require(0 <= self.chips <= CHIPS_PER_REPLICA_MAX, "chips", self.chips, f"0 to {CHIPS_PER_REPLICA_MAX}")
        _require(self.chips > 0 or self.cpus > 0, "chips", self.chips, "over 0, or cpus over 0")
        _require(
            abs(self.chips * MILLI - round(self.chips * MILLI)) < 1e-6 and (self.chips < 1 or self.chips % 1 == 0),
            "chips",
            self.chips,
            "whole chips, or a number of thousandths below one",
        )
        _require(0 <= self.cpus <= 1e6, "cpus", self.cpus, "0 to 1e6")
        _require(0 <= self.memory_gib <= 1e7, "memory_gib", self.memory_gib, "0 to 1e7")
        _require(0 <= self.chip_memory_gib <= CHIP_MEMORY_GIB_MAX, "chip_memory_gib", self.chip_memory_gib, "0 to 1e5")
        _require(self.chips > 0 or not self.chip_memory_gib, "chip_memory_gib", self.chip_memory_gib, "0 without chips")
        _require(1 <= self.replicas <= REPLICAS_MAX, "replicas", self.replicas, f"1 to {REPLICAS_MAX}")
        if self.replicas_min == 0:
            object.__setattr__(self, "replicas_min", self.replicas)
        _require(1 <= self.replicas_min <= self.replicas, "replicas_min", self.replicas_min, "1 to replicas")
        _require(0 < self.speed <= 1e6, "speed", self.speed, "over 0")
        _require((self.group > 0) == (self.group_within is not None), "group", self.group, "group with group_within")
        if self.group:
            whole = self.replicas % self.group == 0 and self.replicas_min % self.group == 0
            _require(self.group > 0 and whole, "group", self.group, "a divisor of replicas and replicas_min")
        _require(len(self.tolerates) <= TOLERATIONS_MAX, "tolerates", len(self.tolerates), f"<= {TOLERATIONS_MAX}")

    @property
    def chip_milli(self) -> int:
        """Returns thousandths of a chip for one replica."""
        return round(self.chips * MILLI)

    @property
    def cpu_milli(self) -> int:
        """Returns thousandths of a CPU core for one replica."""
        return round(self.cpus * MILLI)

    @property
    def memory_mib(self) -> int:
        """Returns MiB of host memory for one replica."""
        return round(self.memory_gib * 1_024)

    @property
    def chip_memory_mib(self) -> int:
        """Returns MiB of memory that each of its chips must have."""
        return round(self.chip_memory_gib * 1_024)


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A group of equal replicas inside a job.

    Args:
        name: Unique inside the job; a simple job has one, "main".
        command: Program and arguments; run without a shell, in the code snapshot's root.
        options: Acceptable ways to run it, none preferred by order.
        environment: Variables for the program. Secrets do not belong here: specs are stored and shown.
        secrets: Names of secrets of the job's team, or of one above, that the program finds as variables.
        secret_files: Names of those it finds as files: `NAME_FILE` tells where.
        spares: How many of its replicas stand by, and take the place of those that are lost.
    """

    name: RoleName = MAIN
    command: tuple[str, ...]
    options: tuple[Option, ...] = field(metadata={"repeats": True})
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[SecretName, ...] = ()
    secret_files: tuple[SecretName, ...] = ()
    spares: int = 0

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidSpec: A field is out of its range.
        """
        checked_name(self.name, "role")
        _require(0 < len(self.command) <= COMMAND_WORDS_MAX, "command", len(self.command), "a program, its arguments")
        size = sum(len(word.encode()) for word in self.command)
        _require(size <= COMMAND_BYTES_MAX, "command", f"{size} bytes", f"at most {COMMAND_BYTES_MAX} bytes")
        _require(bool(self.command[0]), "command", self.command[0], "a program")
        _require("\0" not in "".join(self.command), "command", "a NUL", "words without NUL")
        _require(0 < len(self.options) <= OPTIONS_MAX, "options", len(self.options), f"1 to {OPTIONS_MAX} options")
        least, groups = min(option.replicas_min for option in self.options), [option.group for option in self.options]
        _require(0 <= self.spares < least, "spares", self.spares, f"fewer than the {least} replicas it may run with")
        _require(all(not each or self.spares % each == 0 for each in groups), "spares", self.spares, "whole groups")
        _require(len(self.environment) <= ENVIRONMENT_MAX, "environment", len(self.environment), "fewer variables")
        for name, value in self.environment.items():
            named = name and "=" not in name and "\0" not in name
            _require(bool(named) and "\0" not in value, "environment", name, "names without '=', values without NUL")
        self._check_secrets()

    def _check_secrets(self) -> None:
        for name in (*self.secrets, *self.secret_files):
            checked_secret_name(name)
        variables = [*self.environment, *self.secrets, *(f"{name}{FILE_SUFFIX}" for name in self.secret_files)]
        twice = sorted({name for name in variables if variables.count(name) > 1})
        _require(not twice, "secrets", twice[:3], "variables that differ from each other and from the environment")

    def sized(self, size: Size) -> Role:
        """Returns the role with other numbers of replicas, in each of its options.

        Raises:
            InvalidSpec: They are out of their range.
        """
        options = tuple(replace(option, replicas=size.most, replicas_min=size.least) for option in self.options)
        return replace(self, options=options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """The snapshot of the submitter's working tree that a job runs, and what it ran in.

    Args:
        tree: Content id of the archived tree (`blake3:<hex>`), or "" for a job that needs no files.
        folder: Where in the tree the command runs, "" for its root.
        commit: Git commit it was taken from, "" outside git.
        dirty: Whether the tree differed from the commit.
        python: Interpreter version of the submitter.
        packages: Content id of the list of installed packages, "" when none was recorded.
    """

    tree: str = ""
    folder: str = ""
    commit: str = ""
    dirty: bool = False
    python: str = ""
    packages: str = ""

    @property
    def key(self) -> str:
        """Returns where an object store keeps the archived tree, "" for none."""
        return f"{self._stem}.tar.gz" if self.tree else ""

    @property
    def again_key(self) -> str:
        """Returns what is written there whenever a tree that is there already is submitted: its age tells when."""
        return f"{self._stem}.again"

    @property
    def _stem(self) -> str:
        return f"{CODE_FOLDER}/{self.tree.removeprefix(CODE_SCHEME)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What somebody wants run.

    Args:
        name: Shown to people; need not be unique.
        team: Node of the tenant tree that is charged.
        kind: What the job is for.
        tier: How urgent it is.
        roles: Groups of replicas; all start together or not at all.
        code: The code snapshot the commands run in.
        inputs: Names of dataset versions the job reads, recorded as lineage.
        views: Ids of the training views its ranks read. Where agents get credentials of the object store for their own
            job's part alone, a rank is given those of a view that is named here, and of no other.
        reads: Whose checkpoints its ranks read beside what it begins from, "JOB" or "JOB@STEP" of a job's id or an
            import's name; and releases whose files they read, "release:HASH". As with views.
        evaluates: "JOB@STEP" of the checkpoint that it evaluates: its ranks read it, and keep reports with it; "" for
            none.
        after: Jobs that must succeed first; it fails when one of them does not.
        begins_from: The checkpoint its ranks are given until it has one of its own: "NAME@STEP", or "NAME" for its
            newest durable step when the job starts, of a job's id or an import's name; "" for none.
        duration_s: How long its owner expects it to run, 0 when nobody knows. Plans lean on it; nothing ends at it.
        restarts_max: Rank restarts in place before the attempt is given up.
        attempts_max: Attempts before the job fails.
        notify: When its team is told of it.
    """

    name: str
    team: TeamName = LAB
    kind: JobKind = JobKind.TRAIN
    tier: Tier = Tier.STANDARD
    roles: tuple[Role, ...] = field(metadata={"repeats": True})
    code: Code = field(default=Code(), metadata={"repeats": True})
    inputs: tuple[str, ...] = ()
    views: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    evaluates: str = ""
    after: tuple[JobId, ...] = ()
    begins_from: str = ""
    duration_s: float = 0.0
    restarts_max: int = 8
    attempts_max: int = 4
    notify: tuple[Occasion, ...] = field(default=(Occasion.FAILED,), metadata={"repeats": True})

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidSpec: A field is out of its range.
        """
        checked_name(self.name, "job")
        _require(len(set(self.notify)) == len(self.notify), "notify", [*self.notify], "occasions that differ")
        checked_name(self.team, "team")
        _require(0 < len(self.roles) <= ROLES_MAX, "roles", len(self.roles), f"1 to {ROLES_MAX} roles")
        names = [role.name for role in self.roles]
        _require(len(set(names)) == len(names), "roles", names, "names that differ")
        count = len(self.secrets)
        _require(count <= SECRETS_MAX, "secrets", count, f"at most {SECRETS_MAX} secrets in all roles")
        _require(0 <= self.restarts_max <= 1_000, "restarts_max", self.restarts_max, "0 to 1000")
        _require(1 <= self.attempts_max <= 1_000, "attempts_max", self.attempts_max, "1 to 1000")
        _require(len(self.inputs) <= 1_000, "inputs", len(self.inputs), "at most 1000")
        _require(len(self.views) <= VIEWS_MAX, "views", len(self.views), f"at most {VIEWS_MAX}")
        for view in self.views:
            checked_name(view, "a view")
        self._check_reads()
        _require(len(set(self.after)) == len(self.after) <= AFTER_MAX, "after", len(self.after), f"<= {AFTER_MAX} jobs")
        if self.begins_from:
            checked_name(checkpoint_named(self.begins_from)[0], "what a job begins from")
        _require(0 <= self.duration_s <= DURATION_S_MAX, "duration_s", self.duration_s, f"0 to {DURATION_S_MAX:g}")

    def _check_reads(self) -> None:
        _require(len(self.reads) <= READS_MAX, "reads", len(self.reads), f"at most {READS_MAX}")
        for name in self.reads:
            if name.startswith(RELEASE_READ):
                named = bool(_SHA256.fullmatch(name.removeprefix(RELEASE_READ)))
                _require(named, "reads", name, f"{RELEASE_READ}HASH, 64 letters of 0-9 and a-f")
            else:
                checked_name(checkpoint_named(name)[0], "what a job reads")
        if self.evaluates:
            job, step = checkpoint_named(self.evaluates)
            checked_name(job, "what a job evaluates")
            _require(step is not None, "evaluates", self.evaluates, "JOB@STEP")

    @property
    def jobs_read(self) -> tuple[JobId, ...]:
        """Returns the jobs whose checkpoints its ranks read beside what it begins from, each once."""
        if not self.reads and not self.evaluates:
            return ()  # Most jobs': asked of every one.
        named = [name for name in (*self.reads, self.evaluates) if name and not name.startswith(RELEASE_READ)]
        return tuple(dict.fromkeys(JobId(checkpoint_named(name)[0]) for name in named))

    @property
    def reads_releases(self) -> bool:
        """Returns whether its ranks read files of releases."""
        return any(name.startswith(RELEASE_READ) for name in self.reads)

    @property
    def secrets(self) -> tuple[SecretName, ...]:
        """Returns the names of all secrets that its roles are given, each once."""
        return tuple(dict.fromkeys(name for role in self.roles for name in (*role.secrets, *role.secret_files)))

    def with_overrides(self, overrides: Overrides | None) -> JobSpec:
        """Returns what is to run now: the spec, but for what was said since.

        Args:
            overrides: That; None for nothing.

        Raises:
            InvalidSpec: A role cannot have the size that was said.
        """
        if overrides is None or not (overrides.tier or overrides.sizes):
            return self
        return replace(self.sized(overrides.sizes), tier=overrides.tier or self.tier)

    def sized(self, sizes: Iterable[Size]) -> JobSpec:
        """Returns the spec with other numbers of replicas, in each option of some roles.

        Raises:
            InvalidSpec: They are out of their range.
        """
        by_role = {size.role: size for size in sizes}
        if not by_role:
            return self
        roles = tuple(role.sized(by_role[role.name]) if role.name in by_role else role for role in self.roles)
        return replace(self, roles=roles)


# ---------------------------------------------------------------- what is said later


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Somebody keeps a job, or whatever is of a team, a cluster or a node, from starting, until they release it.

    Args:
        by: Who.
        since_s: Since when.
        reason: Why, for people.
        drain: Whether what runs there ends too, saved, and waits.
        team: The team that is held, with those below it; "" for another thing.
        cluster: The cluster that is held, or the node's.
        node: The node that is held.
    """

    by: str
    since_s: float
    reason: str = ""
    drain: bool = False
    team: TeamName = NO_TEAM
    cluster: ClusterName = NO_CLUSTER
    node: NodeName = NO_NODE

    @property
    def target(self) -> str:
        """Returns what is held, in words; "" for a job."""
        if self.node:
            return f"node {self.node} of {self.cluster}"
        return f"team {self.team}" if self.team else f"cluster {self.cluster}" if self.cluster else ""

    def __str__(self) -> str:
        held = ("drained" if self.drain else "cordoned") if self.node else "paused"
        words = f"{self.target} is {held}" if self.target else held
        return f"{words} by {self.by}" + (f": {self.reason}" if self.reason else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How many replicas a role is to have, at least and at most, in place of what its spec says.

    Args:
        fewest: The least that was ever said of it: an attempt may have started with so few.
        spec_least: What its spec says.
        spec_most: The same; where both are one number its attempts cannot change their size.
    """

    role: RoleName
    least: int
    most: int
    fewest: int
    spec_least: int
    spec_most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """What was said of a job since it was submitted. Its spec stays what it was.

    Args:
        paused: Who keeps it from running, None for nobody.
        tier: How urgent it is, None for what the spec says.
        since_s: Its time in line, None for when it was submitted.
        sizes: Of some of its roles, at most one each.
    """

    paused: Hold | None = None
    tier: Tier | None = None
    since_s: float | None = None
    sizes: tuple[Size, ...] = ()

    def fewest(self) -> tuple[Size, ...]:
        """Returns the sizes that attempts can go on with, however they were started."""
        return tuple(replace(size, least=size.fewest, most=max(size.most, size.fewest)) for size in self.sizes)
