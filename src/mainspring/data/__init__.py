"""Robot data on its way to a policy: recordings -> episodes -> catalog version -> training view -> batches.

Names are loaded when they are first used: a rank that restarts must not pay for video decoders and SQL. The imports
below are never run: type checkers read them, and `__getattr__` looks up in them where a name is.
"""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mainspring.data.catalog.choose.compare import Difference as Difference
    from mainspring.data.catalog.choose.compare import diff as diff
    from mainspring.data.catalog.choose.selections import choose as choose
    from mainspring.data.catalog.choose.selections import merge as merge
    from mainspring.data.catalog.choose.selections import merged as merged
    from mainspring.data.catalog.choose.selections import select as select
    from mainspring.data.catalog.choose.splits import Sides as Sides
    from mainspring.data.catalog.choose.splits import split as split
    from mainspring.data.catalog.collect import GcReport as GcReport
    from mainspring.data.catalog.collect import gc as gc
    from mainspring.data.catalog.keeping import Pin as Pin
    from mainspring.data.catalog.keeping import delete as delete
    from mainspring.data.catalog.keeping import pin as pin
    from mainspring.data.catalog.keeping import pins as pins
    from mainspring.data.catalog.keeping import undelete as undelete
    from mainspring.data.catalog.keeping import unpin as unpin
    from mainspring.data.catalog.lineage import Link as Link
    from mainspring.data.catalog.lineage import ancestors as ancestors
    from mainspring.data.catalog.lineage import descendants as descendants
    from mainspring.data.catalog.lineage import record_use as record_use
    from mainspring.data.catalog.log import Origin as Origin
    from mainspring.data.catalog.log import Version as Version
    from mainspring.data.catalog.log import VersionCandidate as VersionCandidate
    from mainspring.data.catalog.log import Waiver as Waiver
    from mainspring.data.catalog.log import datasets as datasets
    from mainspring.data.catalog.log import newest_versions as newest_versions
    from mainspring.data.catalog.log import resolve as resolve
    from mainspring.data.catalog.log import versions as versions
    from mainspring.data.catalog.mixtures import Mixture as Mixture
    from mainspring.data.catalog.mixtures import delete_mixture as delete_mixture
    from mainspring.data.catalog.mixtures import freeze_mixture as freeze_mixture
    from mainspring.data.catalog.mixtures import mixture as mixture
    from mainspring.data.catalog.mixtures import mixtures as mixtures
    from mainspring.data.catalog.versions import candidate as candidate
    from mainspring.data.catalog.versions import candidates as candidates
    from mainspring.data.catalog.versions import episode_rows as episode_rows
    from mainspring.data.catalog.versions import episode_table as episode_table
    from mainspring.data.catalog.versions import publish as publish
    from mainspring.data.catalog.versions import query as query
    from mainspring.data.episode import EpisodeRow as EpisodeRow
    from mainspring.data.export.export import Export as Export
    from mainspring.data.export.export import ExportTo as ExportTo
    from mainspring.data.export.export import export_format as export_format
    from mainspring.data.export.export import prepare_export as prepare_export
    from mainspring.data.export.export import write_export as write_export
    from mainspring.data.export.run import EXPORT_JOURNAL as EXPORT_JOURNAL
    from mainspring.data.export.run import ExportProgress as ExportProgress
    from mainspring.data.export.run import ExportReport as ExportReport
    from mainspring.data.export.survey import ExportRequest as ExportRequest
    from mainspring.data.features import Camera as Camera
    from mainspring.data.features import Column as Column
    from mainspring.data.features import Features as Features
    from mainspring.data.gates.freshness import Freshness as Freshness
    from mainspring.data.gates.freshness import freshness as freshness
    from mainspring.data.gates.golden import Golden as Golden
    from mainspring.data.gates.golden import check_golden as check_golden
    from mainspring.data.gates.golden import guard as guard
    from mainspring.data.gates.golden import guard_made as guard_made
    from mainspring.data.gates.publishing import Finding as Finding
    from mainspring.data.gates.publishing import Judgement as Judgement
    from mainspring.data.gates.publishing import judge as judge
    from mainspring.data.gates.publishing import judgements as judgements
    from mainspring.data.gates.publishing import publish_judged as publish_judged
    from mainspring.data.gates.suspects import Suspect as Suspect
    from mainspring.data.gates.suspects import suspects as suspects
    from mainspring.data.intake.arrivals import Arrival as Arrival
    from mainspring.data.intake.arrivals import Inbox as Inbox
    from mainspring.data.intake.ingest import ingest as ingest
    from mainspring.data.intake.ingest import ingest_units as ingest_units
    from mainspring.data.intake.logs.recipe import MappingRecipe as MappingRecipe
    from mainspring.data.intake.logs.recipe import Recipe as Recipe
    from mainspring.data.intake.logs.recipe import recipe_from_yaml as recipe_from_yaml
    from mainspring.data.intake.proposals.propose import Proposal as Proposal
    from mainspring.data.intake.proposals.propose import TopicSeen as TopicSeen
    from mainspring.data.intake.proposals.propose import propose as propose
    from mainspring.data.intake.proposals.propose import recipe_to_yaml as recipe_to_yaml
    from mainspring.data.intake.proposals.propose_set import SetProposal as SetProposal
    from mainspring.data.intake.proposals.propose_set import propose_set as propose_set
    from mainspring.data.intake.report import IngestProgress as IngestProgress
    from mainspring.data.intake.report import IngestReport as IngestReport
    from mainspring.data.intake.report import LeftOut as LeftOut
    from mainspring.data.intake.report import Noted as Noted
    from mainspring.data.intake.sources import Survey as Survey
    from mainspring.data.intake.sources import is_bag as is_bag
    from mainspring.data.intake.sources import survey_of as survey_of
    from mainspring.data.intake.sources import units_in as units_in
    from mainspring.data.intake.staging.archive import archive_suffix as archive_suffix
    from mainspring.data.intake.staging.source import StagingOptions as StagingOptions
    from mainspring.data.intake.staging.source import opened_sources as opened_sources
    from mainspring.data.intake.units import Unit as Unit
    from mainspring.data.intake.watch import watch as watch
    from mainspring.data.layers.backfill import BackfillProgress as BackfillProgress
    from mainspring.data.layers.backfill import BackfillReport as BackfillReport
    from mainspring.data.layers.backfill import backfill as backfill
    from mainspring.data.layers.episode import Recorded as Recorded
    from mainspring.data.layers.layer import facts_table as facts_table
    from mainspring.data.layers.layer import find_layer as find_layer
    from mainspring.data.layers.layer import known_layers as known_layers
    from mainspring.data.layers.pools import LocalPool as LocalPool
    from mainspring.data.layers.pools import Pool as Pool
    from mainspring.data.layers.pools import RayPool as RayPool
    from mainspring.data.layers.producer import LayerSpec as LayerSpec
    from mainspring.data.layers.producer import Made as Made
    from mainspring.data.layers.producer import Producer as Producer
    from mainspring.data.layers.producer import load_producer as load_producer
    from mainspring.data.layers.producer import producer as producer
    from mainspring.data.loader.batches import gather as gather
    from mainspring.data.loader.cache import Cache as Cache
    from mainspring.data.loader.loader import Component as Component
    from mainspring.data.loader.loader import Loader as Loader
    from mainspring.data.loader.loader import Sampling as Sampling
    from mainspring.data.loader.pixels import yuv_to_rgb as yuv_to_rgb
    from mainspring.data.loader.ring import Batch as Batch
    from mainspring.data.loader.stream import BatchStream as BatchStream
    from mainspring.data.loss import Loss as Loss
    from mainspring.data.options import IngestOptions as IngestOptions
    from mainspring.data.readers.episodes.lerobot import is_lerobot_set as is_lerobot_set
    from mainspring.data.readers.episodes.table.proposal import TableProposal as TableProposal
    from mainspring.data.readers.episodes.table.proposal import propose_table as propose_table
    from mainspring.data.readers.episodes.table.recipe import TableRecipe as TableRecipe
    from mainspring.data.readers.given import definitions_in as definitions_in
    from mainspring.data.readers.log import Log as Log
    from mainspring.data.readers.log import Messages as Messages
    from mainspring.data.readers.log import Topic as Topic
    from mainspring.data.readers.log import open_log as open_log
    from mainspring.data.recording import EpisodeWriter as EpisodeWriter
    from mainspring.data.show import contact_sheet as contact_sheet
    from mainspring.data.views.build import ViewProgress as ViewProgress
    from mainspring.data.views.build import build_view as build_view
    from mainspring.data.views.manifest import Split as Split
    from mainspring.data.views.manifest import ViewManifest as ViewManifest
    from mainspring.data.views.manifest import ViewRecipe as ViewRecipe
    from mainspring.data.views.moments import Statistics as Statistics
    from mainspring.data.views.view import View as View
    from mainspring.data.views.view import open_view as open_view

_WHERE = {
    name.name: node.module
    for node in ast.walk(ast.parse(Path(__file__).read_text(encoding="utf-8")))
    if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("mainspring.data.")
    for name in node.names
}


def __getattr__(name: str) -> Any:
    """Returns a public name from the module that holds it."""
    if name not in _WHERE:
        raise AttributeError(f"module 'mainspring.data' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    """Returns the public names."""
    return sorted(_WHERE)
