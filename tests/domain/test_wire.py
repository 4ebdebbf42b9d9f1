"""What messages and errors are called where they travel: for good, whatever their classes are called."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mainspring.domain import errors, wire
from mainspring.domain.answers import error_of, problem_of
from mainspring.domain.codec import FRAME_HEADER_BYTES, frame, message, unframe, wire_name
from mainspring.domain.errors import InvalidMessage, MainspringError
from mainspring.domain.release import RELEASE

SRC = Path(wire.__file__).parents[2]
RANK = "Hello NextGeneration StepReport SnapshotBegin SnapshotCommit RestoreRequest FetchPieces ResultReport"
RANK += " Welcome StepReply SnapshotSlot RestorePlan PiecesFetched FetchFailed Done Piece Shard"
RANK += (
    " ViewWanted ViewRefused UpsetReport StepTried ServingReport ProfileWanted ProfileBegin ProfileSlot ProfileCommit"
)
NODE = (
    "AgentJoin StandbyAllowed GenerationPrepared RankStarted RankExited RankLeft RankProgress RankResult SnapshotTaken"
    " RankServing RankUpset RankTried TakeProfile ProfileKept"
)
NODE += (
    " StacksDumped ShareStored StoreFailed RestoreFailed AgentLeaving AgentDrained PrepareGeneration StartRanks LeaveAt"
)
NODE += " SnapshotPace DumpStacks StoreStep EndAgent AgentChallenge AgentProof AgentWelcome CopyBegin IndexRequest"
NODE += " StepSample"
NODE += " Index IndexEntry BytesRequest BytesFollow Holder Holding RankPlace"
CONTROLLER = "Register Orders RoleOrders Heartbeat HeartbeatReply LeadEvent RankStatus Serving AtRisk"
CONTROLLER += " ProfileAsked"
CONTROLLER += " CredentialsWanted ViewCredentialsWanted StoreCredentials HealthBatch HealthTaken"
PEOPLE = (
    "AddNodes ArrayView ArrivalView AttemptView ClusterView Event GoodputReport JobView PlanView PlannedStart Problem"
)
PEOPLE += " Goodput Remedy Shift Submit SubmitBatch SubmittedBatch Team TeamUse TeamView WaitView WhatIf WhatIfAnswer"
PEOPLE += " Why JobCounts AuditLine Health HealthCheck NewSecret NewToken Person SecretView SecretsRotated TokenMade"
PEOPLE += " TokenView RecordingClaim WaitingUse Blocked Login LoginOffer NewNoticePlace Notice NoticePlace"
PEOPLE += " HoldView NewHold NewPriority NewSize NodeView PlanLine Verdict JobHistory Sweep HeldOnes HeldView"
PEOPLE += " EvaluationRuleView EvaluationRun NewEvaluationRule NewProfile ProfileView"
PEOPLE += " ClosedNode PastAttempt PastCluster PastFleet Adopted NotAdopted"
PEOPLE += " HealthEventView HealthFinding HealthRuleView Incident NewClosure NodeChange NodeClosure NodeHealthView"
PEOPLE += " JobSamples MetricSeries RankTimes PromiseDay PromiseView DatasetView DatasetDetail DatasetFreshness"
PEOPLE += " DatasetOwner NewDatasetTeam"
PEOPLE += " VersionView CandidateView LineageLink EpisodeView EpisodeCurve EpisodeDetail"
PEOPLE += " Reason ClusterGlance ClusterMap FailedGlance Glance JobGlance QueueGlance RackView"
PEOPLE += " NodeRepair MaintenanceWindow NewMaintenance NewVerdict RuleMeasured SparesView"
PEOPLE += " NewPolicyRelease PolicyRelease ReleaseView Revocation SignedText TrustView"
PEOPLE += " ClipCatalog ClipEntry ClipKept ClipView ClipsAsked Enrolled NewInstallation NewRobot NewRollout"
PEOPLE += " RobotActionView RobotClaim RobotLabels RobotReport RobotToken RobotView RolloutEvent"
PEOPLE += " RolloutRobot RolloutView RolloutWord"
PEOPLE += " NewScale NewService NewVersion ReplicaAddress ReplicaView ServiceView"
ENGINES = "FarAlive FarAnswer FarCall FarPart OpenKubernetes OpenSlurm"
STARTER = """
BeginStarter BindSocket Exited Made NotDone RemovePath SignalProcess StartProcess Started UnpackCode WriteFiles
"""
ERRORS = "MainspringError InvalidInput InvalidSpec ImpossibleJob InvalidMessage DamagedData NotFound Conflict"
ERRORS += (
    " IllegalTransition KeyReused LimitReached NotAllowed Unavailable StorageFull Busy TooManyRequests OtherRelease"
)


def test_names_of_messages_are_those_that_peers_and_files_of_other_versions_know() -> None:
    written = [
        name for path in sorted(SRC.rglob("*.py")) for name in re.findall(r'(?m)^@message\("(.+)"\)$', path.read_text())
    ]
    assert sorted(written) == sorted(f"{RANK} {NODE} {CONTROLLER} {PEOPLE} {ENGINES} {STARTER}".split())


def test_names_of_errors_are_those_that_peers_of_other_versions_know() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, MainspringError)]
    assert sorted(kind.wire_name for kind in kinds) == sorted(ERRORS.split())
    for kind in kinds:
        error = error_of(problem_of(kind("read it", got="nothing")))
        assert (type(error), str(error)) == (kind, "could not read it; got nothing")


def test_no_name_of_a_class_travels() -> None:
    @message("TestOnly.First")
    class Renamed:
        step: int

    assert wire_name(Renamed) == "TestOnly.First"
    body = frame(Renamed(step=1))[FRAME_HEADER_BYTES:]
    assert json.loads(body) == {"type": "TestOnly.First", "version": 1, "release": RELEASE, "body": {"step": 1}}
    assert unframe(body, Renamed) == Renamed(step=1)


@pytest.mark.parametrize("kinds", [wire.RankRequest, wire.LeadToAgent, wire.PeerRequest, wire.StepReply])
def test_messages_that_may_not_come_in_at_a_door_are_refused_by_name(kinds: object) -> None:
    body = frame(wire.AgentDrained(agent=0))[FRAME_HEADER_BYTES:]
    assert unframe(body, wire.AgentToLead) == wire.AgentDrained(agent=0)
    with pytest.raises(InvalidMessage, match="AgentDrained"):
        unframe(body, kinds)  # type: ignore[arg-type]
