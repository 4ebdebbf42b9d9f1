"""Every message between the processes of a run, and every kind of event.

Rank <-> agent over a Unix socket (`rank`), agent <-> lead and agent <-> agent over TCP (`node`), agent and lead <->
controller over HTTP (`controller`); what people's tools and the controller say to each other is in `answers`. Streams
carry frames (`codec.frame`). A field may be added with a default; anything else is a new version. Times are seconds
since the Unix epoch unless a name says otherwise.
"""

from mainspring.domain.fleet import AgentExit as AgentExit
from mainspring.domain.fleet import AgentOrder as AgentOrder
from mainspring.domain.wire.controller import Heartbeat as Heartbeat
from mainspring.domain.wire.controller import HeartbeatReply as HeartbeatReply
from mainspring.domain.wire.controller import LeadEvent as LeadEvent
from mainspring.domain.wire.controller import Orders as Orders
from mainspring.domain.wire.controller import RankStatus as RankStatus
from mainspring.domain.wire.controller import Register as Register
from mainspring.domain.wire.controller import RoleOrders as RoleOrders
from mainspring.domain.wire.facts import EXIT_PREEMPTED as EXIT_PREEMPTED
from mainspring.domain.wire.facts import NO_LONGER_HELD as NO_LONGER_HELD
from mainspring.domain.wire.facts import Detail as Detail
from mainspring.domain.wire.facts import EventKind as EventKind
from mainspring.domain.wire.node import AgentDrained as AgentDrained
from mainspring.domain.wire.node import AgentJoin as AgentJoin
from mainspring.domain.wire.node import AgentLeaving as AgentLeaving
from mainspring.domain.wire.node import BytesFollow as BytesFollow
from mainspring.domain.wire.node import BytesRequest as BytesRequest
from mainspring.domain.wire.node import CopyBegin as CopyBegin
from mainspring.domain.wire.node import DumpStacks as DumpStacks
from mainspring.domain.wire.node import EndAgent as EndAgent
from mainspring.domain.wire.node import GenerationPrepared as GenerationPrepared
from mainspring.domain.wire.node import Holder as Holder
from mainspring.domain.wire.node import Holding as Holding
from mainspring.domain.wire.node import Index as Index
from mainspring.domain.wire.node import IndexEntry as IndexEntry
from mainspring.domain.wire.node import IndexRequest as IndexRequest
from mainspring.domain.wire.node import LeaveAt as LeaveAt
from mainspring.domain.wire.node import PeerHello as PeerHello
from mainspring.domain.wire.node import PrepareGeneration as PrepareGeneration
from mainspring.domain.wire.node import RankExited as RankExited
from mainspring.domain.wire.node import RankLeft as RankLeft
from mainspring.domain.wire.node import RankPlace as RankPlace
from mainspring.domain.wire.node import RankProgress as RankProgress
from mainspring.domain.wire.node import RankResult as RankResult
from mainspring.domain.wire.node import RankStarted as RankStarted
from mainspring.domain.wire.node import RestoreFailed as RestoreFailed
from mainspring.domain.wire.node import ShareStored as ShareStored
from mainspring.domain.wire.node import SnapshotPace as SnapshotPace
from mainspring.domain.wire.node import SnapshotTaken as SnapshotTaken
from mainspring.domain.wire.node import StacksDumped as StacksDumped
from mainspring.domain.wire.node import StandbyAllowed as StandbyAllowed
from mainspring.domain.wire.node import StartRanks as StartRanks
from mainspring.domain.wire.node import StoreFailed as StoreFailed
from mainspring.domain.wire.node import StoreStep as StoreStep
from mainspring.domain.wire.rank import Done as Done
from mainspring.domain.wire.rank import FetchFailed as FetchFailed
from mainspring.domain.wire.rank import FetchPieces as FetchPieces
from mainspring.domain.wire.rank import Hello as Hello
from mainspring.domain.wire.rank import NextGeneration as NextGeneration
from mainspring.domain.wire.rank import Part as Part
from mainspring.domain.wire.rank import Piece as Piece
from mainspring.domain.wire.rank import PiecesFetched as PiecesFetched
from mainspring.domain.wire.rank import RestorePlan as RestorePlan
from mainspring.domain.wire.rank import RestoreRequest as RestoreRequest
from mainspring.domain.wire.rank import ResultReport as ResultReport
from mainspring.domain.wire.rank import Shard as Shard
from mainspring.domain.wire.rank import SnapshotBegin as SnapshotBegin
from mainspring.domain.wire.rank import SnapshotCommit as SnapshotCommit
from mainspring.domain.wire.rank import SnapshotSlot as SnapshotSlot
from mainspring.domain.wire.rank import StepReply as StepReply
from mainspring.domain.wire.rank import StepReport as StepReport
from mainspring.domain.wire.rank import Then as Then
from mainspring.domain.wire.rank import Welcome as Welcome
