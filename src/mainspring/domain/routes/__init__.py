"""Every call on the controller over HTTP, listed once: where it goes, what it takes and answers, who may make it.

A route is written as a method without a body. Its parameters are those in the path, `body` for what is sent, and, by
name alone, those in the query. The server makes its endpoints of them (`control.api`), the client its requests
(`app.base.calls`), and the SDK offers `LabCalls` as they are. The first paragraph of the docstring is published.
"""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from mainspring.domain import answers, wire
from mainspring.domain.codec import WHOLE_MAX
from mainspring.domain.goodput import Goodput
from mainspring.domain.ids import ClusterName, TeamName
from mainspring.domain.life import JobState
from mainspring.domain.routes.clips import ClipCalls
from mainspring.domain.routes.datasets import DatasetCalls
from mainspring.domain.routes.evaluations import EvaluationCalls
from mainspring.domain.routes.nodes import LIST_MAX as LIST_MAX
from mainspring.domain.routes.nodes import Limit, Named, NodeCalls
from mainspring.domain.routes.releases import ReleaseCalls
from mainspring.domain.routes.robots import DeviceCalls, RobotCalls
from mainspring.domain.routes.routing import KEY_HEADER as KEY_HEADER
from mainspring.domain.routes.routing import Answer as Answer
from mainspring.domain.routes.routing import P as P
from mainspring.domain.routes.routing import Query, route
from mainspring.domain.routes.routing import Route as Route
from mainspring.domain.routes.routing import bounds_of as bounds_of
from mainspring.domain.routes.samples import SampleCalls
from mainspring.domain.routes.services import ServiceCalls
from mainspring.domain.team import Right, Team

LOG_BYTES_MAX = 1 << 20
Since = Annotated[int, Query(ge=0, le=WHOLE_MAX)]
ContentId = Annotated[str, Query(pattern="^[0-9a-f]{64}$")]
Stream = Iterator[bytes]  # A body of any length.
_JOBS = Right.READ_JOBS


class LabCalls(
    NodeCalls, EvaluationCalls, SampleCalls, DatasetCalls, ClipCalls, ServiceCalls, ReleaseCalls, RobotCalls
):
    """What people ask, and the SDK offers as it is. JOB is a job's id, or a name: of several the newest."""

    @route("GET", "/jobs", may=_JOBS, handler="jobs", operation="list_jobs")
    def ps(
        self,
        *,
        state: JobState | None = None,
        team: Annotated[TeamName | None, Query(max_length=63)] = None,
        owner: Named = None,
        array: Named = None,
        after: Named = None,
        limit: Limit = 50,
    ) -> tuple[answers.JobView, ...]:
        """Lists the newest jobs, newest first, without ranks and goodput, and of their commands the program alone; one
        for each array, or every job of one array.

        Args:
            state: Only jobs in this state.
            team: Only this team's.
            owner: Only what this person submitted.
            array: JOB: then every job of its array, in order.
            after: JOB, the last one seen: the list goes on after it, to the first job ever.
            limit: At most so many.
        """

    @route("GET", "/job-counts", may=_JOBS, handler="job_counts")
    def job_counts(
        self, *, team: Annotated[TeamName | None, Query(max_length=63)] = None, owner: Named = None
    ) -> answers.JobCounts:
        """Counts jobs by state, those of arrays one by one.

        Args:
            team: Only this team's.
            owner: Only what this person submitted.
        """

    @route("GET", "/jobs/{job}", may=_JOBS, handler="job", operation="show_job")
    def status(self, job: str) -> answers.JobView:
        """Shows one job, by id or by the newest of its name."""

    @route(
        "POST",
        "/jobs/{job}/stop",
        may=Right.STOP_JOBS,
        handler="steering.stop",
        operation="stop_job",
        patient=True,
        repeats=True,
    )
    def stop(
        self, job: str, *, array: bool = False, reason: Annotated[str, Query(max_length=answers.REASON_MAX)] = ""
    ) -> answers.JobView:
        """Asks a job to end, or all jobs of its array; one that has ended stays as it is."""

    @route("PUT", "/jobs/{job}/hold", may=Right.STEER_JOBS, handler="steering.pause", operation="pause_job")
    def pause(self, job: str, body: answers.NewHold, *, array: bool = False) -> answers.JobView:
        """Keeps a job, or all jobs of its array, from running: an attempt ends, saved, and none starts."""

    @route(
        "DELETE",
        "/jobs/{job}/hold",
        may=Right.STEER_JOBS,
        handler="steering.resume",
        operation="resume_job",
        repeats=True,
    )
    def resume(self, job: str, *, array: bool = False) -> answers.JobView:
        """Lets a paused job, or all jobs of its array, run again; its time in line is what it was."""

    @route(
        "POST",
        "/jobs/{job}/requeue",
        may=Right.STEER_JOBS,
        handler="steering.requeue",
        operation="requeue_job",
        patient=True,
    )
    def requeue(
        self, job: str, *, array: bool = False, reason: Annotated[str, Query(max_length=answers.REASON_MAX)] = ""
    ) -> answers.JobView:
        """Ends the attempt of a job, or of all jobs of its array, saved, and queues it again; one that waits goes on
        waiting.
        """

    @route("PUT", "/jobs/{job}/priority", may=Right.RANK_JOBS, handler="steering.rank", operation="rank_job")
    def priority(self, job: str, body: answers.NewPriority, *, array: bool = False) -> answers.JobView:
        """Gives a job, or all jobs of its array, another tier, another place among those of its team that wait, or
        both.
        """

    @route("PUT", "/jobs/{job}/size", may=Right.STEER_JOBS, handler="steering.resize", operation="resize_job")
    def resize(self, job: str, body: answers.NewSize, *, array: bool = False) -> answers.JobView:
        """Gives a role of a job, or of all jobs of its array, another number of replicas, from its next start on; an
        elastic one that runs, at once.
        """

    @route("GET", "/jobs/{job}/why", may=_JOBS, handler="questions.why", patient=True)
    def why(self, job: str, *, remedies: bool = False) -> answers.Why:
        """Tells why a job is where it is, or waits; with `remedies`, also what would start it now.

        Args:
            job: JOB.
            remedies: Whether to find what would start it now, which takes a while on a large fleet.
        """

    @route("GET", "/plan", handler="questions.plan", operation="show_plan")
    def plan(self) -> answers.PlanView:
        """Shows the last plan."""

    @route("GET", "/plans", handler="questions.plans", operation="list_plans")
    def plans(
        self, *, before: Annotated[int | None, Query(ge=1, le=WHOLE_MAX)] = None, limit: Limit = 50
    ) -> tuple[answers.PlanLine, ...]:
        """Lists the plans that changed something, newest first.

        Args:
            before: Number of the last one seen: the list goes on after it, to the first plan ever.
            limit: At most so many.
        """

    @route("GET", "/verdicts", may=_JOBS, handler="questions.verdicts", operation="list_verdicts")
    def verdicts(
        self, *, team: Annotated[TeamName | None, Query(max_length=63)] = None, limit: Limit = 50
    ) -> tuple[answers.Verdict, ...]:
        """Lists why jobs wait, those that wait for the same together, what most wait for first.

        Args:
            team: Only this team's.
            limit: At most so many.
        """

    @route("POST", "/plan/what-if", handler="questions.what_if", patient=True, repeats=True)
    def what_if(self, body: answers.WhatIf) -> answers.WhatIfAnswer:
        """Tells what some changes would make of the last plan; nothing of it happens."""

    @route("GET", "/jobs/{job}/goodput", may=_JOBS, handler="accounts.of_job", operation="job_goodput")
    def goodput(self, job: str) -> Goodput:
        """Tells what the time allocated to a job went into; the parts add up to the whole."""

    @route("GET", "/jobs/{job}/history", may=_JOBS, handler="retention.history", operation="job_history", patient=True)
    def history(self, job: str) -> answers.JobHistory:
        """Shows a job's whole life, also once it was removed and is in the archive."""

    @route(
        "POST",
        "/sweep",
        may=Right.KEEP_STORE,
        handler="retention.collect",
        operation="sweep",
        patient=True,
        repeats=True,
    )
    def sweep(self, *, dry_run: bool = False) -> answers.Sweep:
        """Archives and removes what is older than it is kept, in small steps, for as long as a call may take.

        Args:
            dry_run: Only tell what that would be.
        """

    @route("GET", "/goodput", may=_JOBS, handler="accounts.report", operation="goodput", patient=True)
    def goodput_report(
        self,
        *,
        team: Annotated[TeamName | None, Query(max_length=63)] = None,
        cluster: Annotated[ClusterName | None, Query(max_length=63)] = None,
        since_s: Annotated[float, Query(alias="since", ge=0, allow_inf_nan=False)] = 0.0,
    ) -> answers.GoodputReport:
        """Tells what allocated time went into: of all attempts granted since a time, by team and by cluster.

        Args:
            team: Only of this team and those below it.
            cluster: Only on this cluster.
            since_s: Only attempts granted since then, in seconds since the Unix epoch.
        """

    @route("GET", "/clusters", handler="clusters", operation="clusters")
    def fleet(self) -> tuple[answers.ClusterView, ...]:
        """Lists every cluster that ever answered."""

    @route("GET", "/glance", may=_JOBS, handler="questions.glance")
    def glance(self, *, limit: Annotated[int, Query(ge=0, le=100)] = 10) -> answers.Glance:
        """Shows the lab at a glance: chips, who waits, the largest jobs, what failed.

        Args:
            limit: At most so many jobs of each kind.
        """

    @route("GET", "/fleet", handler="retention.fleet_at", operation="fleet_at", patient=True)
    def fleet_at(
        self, *, at_s: Annotated[float, Query(alias="at", ge=0, allow_inf_nan=False)], limit: Limit = LIST_MAX
    ) -> answers.PastFleet:
        """Shows the fleet at a time: which jobs ran where, how many waited, which nodes there were, and were closed.

        Args:
            at_s: The time, in seconds since the Unix epoch.
            limit: At most so many attempts, and closed nodes of each cluster.
        """

    @route("GET", "/teams", handler="people.teams", operation="teams")
    def teams(self) -> tuple[answers.TeamView, ...]:
        """Lists the tenant tree with what each team holds, in order of name."""

    @route("GET", "/holds", handler="pauses.holds")
    def holds(self) -> tuple[answers.HoldView, ...]:
        """Lists what is paused and drained: teams, clusters, nodes, each in order of name."""

    @route("PUT", "/teams/{team}/hold", may=Right.HOLD_TEAMS, handler="pauses.pause_team")
    def pause_team(self, team: str, body: answers.NewHold) -> answers.HoldView:
        """Keeps jobs of a team, and of those below it, from starting."""

    @route("DELETE", "/teams/{team}/hold", may=Right.HOLD_TEAMS, handler="pauses.resume_team", repeats=True)
    def resume_team(self, team: str) -> answers.HoldView:
        """Lets jobs of a team start again."""

    @route("PUT", "/clusters/{cluster}/hold", may=Right.HOLD_FLEET, handler="pauses.pause_cluster")
    def pause_cluster(self, cluster: str, body: answers.NewHold) -> answers.HoldView:
        """Keeps jobs from starting on a cluster."""

    @route("DELETE", "/clusters/{cluster}/hold", may=Right.HOLD_FLEET, handler="pauses.resume_cluster", repeats=True)
    def resume_cluster(self, cluster: str) -> answers.HoldView:
        """Lets jobs start on a cluster again."""

    @route("PUT", "/clusters/{cluster}/nodes/{node}/hold", may=Right.HOLD_FLEET, handler="pauses.drain")
    def drain(self, cluster: str, node: str, body: answers.NewHold) -> answers.HoldView:
        """Keeps jobs from starting on a node; what runs on it ends, saved, and is placed elsewhere."""

    @route(
        "DELETE", "/clusters/{cluster}/nodes/{node}/hold", may=Right.HOLD_FLEET, handler="pauses.undrain", repeats=True
    )
    def undrain(self, cluster: str, node: str) -> answers.HoldView:
        """Lets jobs start on a node again, unless others keep them off."""

    @route("GET", "/held", handler="restores.held")
    def held(self) -> tuple[answers.HeldView, ...]:
        """Lists what clusters show beyond what the store knows, as after it went back in time; by cluster and id."""

    @route("POST", "/held/end", may=Right.HOLD_FLEET, handler="restores.end", repeats=True)
    def end_held(self, body: answers.HeldOnes) -> tuple[answers.HeldView, ...]:
        """Ends what is held, lets its jobs start once it is over, and lists all that is held."""

    @route("POST", "/held/adopt", may=Right.HOLD_FLEET, handler="restores.adopt", patient=True, repeats=True)
    def adopt_held(self, body: answers.HeldOnes) -> answers.Adopted:
        """Adopts what is held and runs: it goes on as its job's attempt; tells what cannot be adopted, and why."""

    @route("GET", "/whoami", handler="people.whoami")
    def whoami(self) -> answers.Person:
        """Tells whom the caller's token stands for."""

    @route("POST", "/tokens", may=Right.MAKE_TOKENS, handler="people.new_token")
    def new_token(self, body: answers.NewToken) -> answers.TokenMade:
        """Makes a token for somebody, and tells its secret this once."""

    @route("GET", "/tokens", may=Right.MANAGE_TOKENS, handler="people.tokens", operation="list_tokens")
    def tokens(self) -> tuple[answers.TokenView, ...]:
        """Lists the tokens of the caller, and of the teams it administers, newest first."""

    @route("GET", "/audit", may=Right.READ_AUDIT, handler="people.audit")
    def audit(
        self, *, since: Since = 0, limit: Limit = LIST_MAX, newest: bool = False
    ) -> tuple[answers.AuditLine, ...]:
        """Lists the audit log of the caller's teams, oldest first.

        Args:
            since: Only what came after this line.
            limit: At most so many.
            newest: Whether to leave out the oldest where there are more, and not the newest.
        """

    @route("GET", "/secrets", may=Right.LIST_SECRETS, handler="people.secrets.known", operation="list_secrets")
    def secrets(
        self, *, team: Annotated[TeamName | None, Query(max_length=63)] = None
    ) -> tuple[answers.SecretView, ...]:
        """Lists secrets without their values, in order of team and name: of the caller's team, those below and those
        above it.

        Args:
            team: Those that jobs of this team may name: its own, and those of teams above, of one name the nearest.
        """

    @route("PUT", "/teams/{team}/secrets/{name}", may=Right.MANAGE_SECRETS, handler="people.secrets.keep")
    def set_secret(self, team: str, name: str, body: answers.NewSecret) -> answers.SecretView:
        """Keeps a team's secret, encrypted; of the same value, as it is."""

    @route("DELETE", "/teams/{team}/secrets/{name}", may=Right.MANAGE_SECRETS, handler="people.secrets.remove")
    def remove_secret(self, team: str, name: str) -> answers.SecretView:
        """Removes a team's secret; a job that names it fails when it would start."""

    @route("PUT", "/teams/{team}/notices", may=Right.MANAGE_NOTICES, handler="people.notices.place")
    def set_notices(self, team: str, body: answers.NewNoticePlace) -> answers.NoticePlace:
        """Says where a team, and those below that say nothing, are told of their jobs."""

    @route("DELETE", "/teams/{team}/notices", may=Right.MANAGE_NOTICES, handler="people.notices.remove")
    def remove_notices(self, team: str) -> answers.NoticePlace:
        """Has a team told nothing any more, but for what a team above it wants to be told."""

    @route(
        "POST", "/secrets/rotate", may=Right.MANAGE_SECRETS, handler="people.secrets.rotate", patient=True, repeats=True
    )
    def rotate_secrets(self) -> answers.SecretsRotated:
        """Encrypts every secret of the lab under a new key, and forgets the older keys."""

    @route("DELETE", "/tokens/{token}", may=Right.MANAGE_TOKENS, handler="people.remove_token")
    def remove_token(self, token: str) -> answers.TokenView:
        """Removes a token, which lets nobody in from then on."""

    @route("PUT", "/teams/{team}/blocked/{holder}", may=Right.MANAGE_TOKENS, handler="people.block")
    def block(self, team: str, holder: str) -> answers.Blocked:
        """Keeps somebody out of a team and those below it: removes their tokens there, and lets them log in to none
        of them, until that is taken back.
        """

    @route("DELETE", "/teams/{team}/blocked/{holder}", may=Right.MANAGE_TOKENS, handler="people.unblock")
    def unblock(self, team: str, holder: str) -> answers.Blocked:
        """Lets somebody log in again who was kept out."""

    @route("GET", "/blocked", may=Right.MANAGE_TOKENS, handler="people.blocked", operation="list_blocked")
    def blocked(self) -> tuple[answers.Blocked, ...]:
        """Lists who is kept out of the teams that the caller administers, in order of name."""


class Calls(LabCalls, DeviceCalls):
    """Every call: those of people, those the SDK makes more of, and those of agents."""

    @route("GET", "/health", anybody=True)
    def health(self) -> answers.Health:
        """Tells how the server is; needs no token."""

    @route("GET", "/livez", anybody=True, below="")
    def livez(self) -> answers.Health:
        """Tells how the server is, with status 503 when its loop hangs and only a new process helps; needs no token."""

    @route("GET", "/readyz", anybody=True, below="")
    def readyz(self) -> answers.Health:
        """Tells how the server is, with status 503 while it cannot do its work; needs no token. A cluster that does
        not answer makes it degraded, with status 200.
        """

    @route("GET", "/metrics", may=Right.READ_METRICS, below="")
    def metrics(self) -> str:
        """Tells what this server measures, in the text format of Prometheus or of OpenMetrics."""

    @route("GET", "/login", anybody=True)
    def login_offer(self) -> answers.LoginOffer:
        """Tells how people log in by the lab's provider of identities; needs no token."""

    @route("POST", "/login", anybody=True)
    def log_in(self, body: answers.Login) -> answers.TokenMade:
        """Makes a token for a few hours for whom an ID token of the lab's provider stands for; needs no other."""

    @route("POST", "/jobs", may=Right.SUBMIT_JOBS, patient=True, repeats=True)
    def submit(self, body: answers.Submit) -> answers.JobView:
        """Takes a job, or returns the one that the same key made before. `Idempotency-Key` stands for a key that is not
        given; `Client` draws one.
        """

    @route("POST", "/jobs/batch", may=Right.SUBMIT_JOBS, patient=True, repeats=True)
    def submit_batch(self, body: answers.SubmitBatch) -> answers.SubmittedBatch:
        """Takes many jobs in one transaction: all of them, or none. `Idempotency-Key` stands for the keys of those that
        have none; `Client` draws one for each.
        """

    @route("GET", "/jobs/{job}/events", may=_JOBS, handler="events")
    def job_events(
        self, job: str, *, since: Since = 0, limit: Limit = LIST_MAX, newest: bool = False, follow: bool = False
    ) -> tuple[answers.Event, ...]:
        """Lists a job's events after a sequence number, oldest first; with `follow`, tells them as they come, as
        server-sent events, until the job ends.

        Args:
            job: JOB.
            since: Only what came after this event.
            limit: At most so many.
            newest: Whether to leave out the oldest where there are more, and not the newest.
            follow: Whether to go on.
        """

    @route("GET", "/events", may=_JOBS, handler="events", operation="events")
    def all_events(
        self, *, since: Since = 0, limit: Limit = LIST_MAX, newest: bool = False, follow: bool = False
    ) -> tuple[answers.Event, ...]:
        """Lists all events after a sequence number, oldest first; with `follow`, tells them as they come, as
        server-sent events.
        """

    @route("GET", "/jobs/{job}/logs", may=_JOBS, operation="logs")
    def read_logs(
        self,
        job: str,
        *,
        rank: Since = 0,
        since: Since = 0,
        attempt: Annotated[int | None, Query(ge=1, le=WHOLE_MAX)] = None,
        limit: Annotated[int, Query(ge=1, le=LOG_BYTES_MAX)] = LOG_BYTES_MAX,
        follow: bool = False,
    ) -> bytes:
        """Returns a piece of one rank's output, or follows it across attempts until the job ends."""

    @route("PUT", "/teams/{name}", may=Right.SET_TEAMS, operation="set_team")
    def put_team(self, name: str, body: Team) -> Team:
        """Places a team in the tenant tree, or changes it."""

    @route("GET", "/datasets/{dataset}/arrivals/{name}", may=Right.READ_RECORDINGS, operation="show_arrival")
    def arrival(self, dataset: str, name: str, *, id: ContentId, size: Since) -> answers.ArrivalView:
        """Tells how much of a recording is here, named by its content, and what became of it."""

    @route(
        "PUT",
        "/datasets/{dataset}/arrivals/{name}",
        may=Right.SEND_RECORDINGS,
        operation="receive_arrival",
        patient=True,
    )
    def send(
        self, dataset: str, name: str, body: Stream, *, id: ContentId, size: Since, offset: Since = 0
    ) -> answers.ArrivalView:
        """Adds a body of any length to a recording, named by its content; with its last byte the recording has
        arrived.
        """

    @route("PUT", "/datasets/{dataset}/recipe", may=Right.SEND_RECORDINGS)
    def set_recipe(self, dataset: str, body: bytes) -> None:
        """Keeps the recipe (YAML) by which recordings sent to a dataset are read from now on."""

    @route("POST", "/agents/register", may=None)
    def register(self, body: wire.Register) -> wire.Orders:
        """Gives an agent its orders; `ready` once every agent of the attempt has come."""

    @route("POST", "/agents/store-credentials", may=None)
    def store_credentials(self, body: wire.CredentialsWanted) -> wire.StoreCredentials:
        """Gives an agent credentials for its attempt's part of the object store, for a while."""

    @route("POST", "/agents/view-credentials", may=None, handler="store_credentials")
    def view_credentials(self, body: wire.ViewCredentialsWanted) -> wire.StoreCredentials:
        """Gives an agent credentials to read one view by, which its ranks' job names, for a while."""

    @route("POST", "/agents/heartbeat", may=None)
    def heartbeat(self, body: wire.Heartbeat) -> wire.HeartbeatReply:
        """Takes a lead's report."""


ROUTES: tuple[Route[..., Any], ...] = tuple(
    each
    for kind in (*LabCalls.__bases__, LabCalls, DeviceCalls, Calls)
    for each in vars(kind).values()
    if isinstance(each, Route)
)
