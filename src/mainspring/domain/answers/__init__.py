"""API values over HTTP: requests and views of people's tools and the controller, and errors as they travel.

A field may be added with a default; anything else is a new version. Times are seconds since the Unix epoch.
"""

from typing import TYPE_CHECKING

from mainspring.lazy import names_of

if TYPE_CHECKING:
    from mainspring.domain.answers.arrivals import ArrivalView, RecordingClaim, Standing
    from mainspring.domain.answers.clips import (
        CLIPS_LISTED_MAX,
        CLIPS_TOLD_MAX,
        ClipCatalog,
        ClipEntry,
        ClipsAsked,
        ClipView,
        ClipWay,
    )
    from mainspring.domain.answers.clusters import (
        NODE_USES,
        ClusterGlance,
        ClusterMap,
        ClusterView,
        FailedGlance,
        Glance,
        JobGlance,
        NodeView,
        QueueGlance,
        RackView,
        TeamUse,
        TeamView,
    )
    from mainspring.domain.answers.health import (
        ClosureKind,
        Health,
        HealthCheck,
        HealthEventView,
        HealthFinding,
        HealthRuleView,
        HealthStatus,
        Incident,
        IncidentKind,
        MaintenanceWindow,
        NewClosure,
        NewMaintenance,
        NewVerdict,
        NodeChange,
        NodeClosure,
        NodeHealthView,
        NodeRepair,
        PromiseDay,
        PromiseView,
        Reason,
        RepairOutcome,
        RuleMeasured,
        SparesView,
    )
    from mainspring.domain.answers.history import ClosedNode, JobHistory, PastAttempt, PastCluster, PastFleet, Sweep
    from mainspring.domain.answers.jobs import (
        BATCH_MAX,
        ArrayView,
        AttemptView,
        EvaluationRuleView,
        EvaluationRun,
        Event,
        GoodputReport,
        JobCounts,
        JobView,
        NewEvaluationRule,
        NewProfile,
        ProfileView,
        Submit,
        SubmitBatch,
        SubmittedBatch,
    )
    from mainspring.domain.answers.measured.datasets import (
        CandidateView,
        DatasetDetail,
        DatasetFreshness,
        DatasetOwner,
        DatasetView,
        EpisodeCurve,
        EpisodeDetail,
        EpisodeView,
        LineageLink,
        NewDatasetTeam,
        VersionView,
    )
    from mainspring.domain.answers.measured.samples import POINTS_MAX, SERIES_MAX, JobSamples, MetricSeries, RankTimes
    from mainspring.domain.answers.notices import NewNoticePlace, Notice, NoticePlace
    from mainspring.domain.answers.people import (
        ID_TOKEN_LENGTH_MAX,
        AuditLine,
        Blocked,
        Login,
        LoginOffer,
        NewSecret,
        NewToken,
        Person,
        SecretsRotated,
        SecretView,
        TokenMade,
        TokenView,
        WaitingUse,
    )
    from mainspring.domain.answers.plans import (
        CHANGES_MAX,
        SHOWN_MAX,
        AddNodes,
        PlanLine,
        PlannedStart,
        PlanView,
        Remedy,
        Shift,
        Verdict,
        WaitView,
        WhatIf,
        WhatIfAnswer,
        Why,
    )
    from mainspring.domain.answers.policies.releases import (
        NewPolicyRelease,
        PolicyRelease,
        ReleaseState,
        ReleaseView,
        Revocation,
        SignedText,
        TrustView,
    )
    from mainspring.domain.answers.policies.robots import (
        ActionState,
        Enrolled,
        NewInstallation,
        NewRobot,
        RobotActionView,
        RobotClaim,
        RobotLabels,
        RobotReport,
        RobotState,
        RobotTally,
        RobotToken,
        RobotView,
    )
    from mainspring.domain.answers.policies.rollouts import (
        NewRollout,
        RobotStanding,
        RolloutEvent,
        RolloutRobot,
        RolloutRules,
        RolloutState,
        RolloutView,
        RolloutWord,
    )
    from mainspring.domain.answers.policies.services import (
        SERVICE_REPLICAS_MAX,
        SERVICES_MAX,
        NewScale,
        NewService,
        NewVersion,
        ReplicaAddress,
        ReplicaView,
        ServicePhase,
        ServiceView,
    )
    from mainspring.domain.answers.problems import PROBLEM_TYPE, Problem, error_of, problem_of
    from mainspring.domain.answers.restores import Adopted, HeldOnes, HeldView, NotAdopted
    from mainspring.domain.answers.steering import REASON_MAX, HoldView, NewHold, NewPriority, NewSize, QueuePlace
else:
    __getattr__, __dir__ = names_of(__name__)
