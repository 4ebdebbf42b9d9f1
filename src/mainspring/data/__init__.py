"""Robot data on its way to a policy: recordings -> episodes -> catalog version -> training view -> batches.

Names are loaded when they are first used: a rank that restarts must not pay for video decoders and SQL. The imports
below are never run: type checkers read them, and `__getattr__` looks up in them where a name is.
"""

from typing import TYPE_CHECKING

from mainspring.lazy import names_of

if TYPE_CHECKING:
    from mainspring.data.catalog.choose.compare import Difference, diff
    from mainspring.data.catalog.choose.selections import (
        choose,
        merge,
        merged,
        select,
    )
    from mainspring.data.catalog.choose.splits import Sides, split
    from mainspring.data.catalog.collect import GcReport, gc
    from mainspring.data.catalog.keeping import (
        Pin,
        delete,
        pin,
        pins,
        undelete,
        unpin,
    )
    from mainspring.data.catalog.lineage import (
        Link,
        ancestors,
        descendants,
        record_use,
    )
    from mainspring.data.catalog.log import (
        Origin,
        Version,
        VersionCandidate,
        Waiver,
        datasets,
        newest_versions,
        resolve,
        versions,
    )
    from mainspring.data.catalog.mixtures import (
        Mixture,
        delete_mixture,
        freeze_mixture,
        mixture,
        mixtures,
    )
    from mainspring.data.catalog.versions import (
        candidate,
        candidates,
        episode_rows,
        episode_table,
        publish,
        query,
    )
    from mainspring.data.episode import EpisodeRow
    from mainspring.data.export.export import (
        Export,
        ExportTo,
        export_format,
        prepare_export,
        write_export,
    )
    from mainspring.data.export.run import (
        EXPORT_JOURNAL,
        ExportProgress,
        ExportReport,
    )
    from mainspring.data.export.survey import ExportRequest
    from mainspring.data.features import Camera, Column, Features
    from mainspring.data.gates.freshness import Freshness, freshness
    from mainspring.data.gates.golden import (
        Golden,
        check_golden,
        guard,
        guard_made,
    )
    from mainspring.data.gates.publishing import (
        Finding,
        Judgement,
        judge,
        judgements,
        publish_judged,
    )
    from mainspring.data.gates.suspects import Suspect, suspects
    from mainspring.data.intake.arrivals import Arrival, Inbox
    from mainspring.data.intake.ingest import ingest, ingest_units
    from mainspring.data.intake.logs.recipe import (
        MappingRecipe,
        Recipe,
        recipe_from_yaml,
    )
    from mainspring.data.intake.proposals.propose import (
        Proposal,
        TopicSeen,
        propose,
        recipe_to_yaml,
    )
    from mainspring.data.intake.proposals.propose_set import SetProposal, propose_set
    from mainspring.data.intake.report import (
        IngestProgress,
        IngestReport,
        LeftOut,
        Noted,
    )
    from mainspring.data.intake.sources import (
        Survey,
        is_bag,
        survey_of,
        survey_of_units,
        units_in,
    )
    from mainspring.data.intake.staging.archive import archive_suffix
    from mainspring.data.intake.staging.source import StagingOptions, opened_sources
    from mainspring.data.intake.units import Unit
    from mainspring.data.intake.watch import watch
    from mainspring.data.layers.annotations import (
        Annotation,
        annotation_table,
        annotations_of,
        freeze_labels,
        put_annotations,
        stretch_of,
    )
    from mainspring.data.layers.backfill import (
        BackfillProgress,
        BackfillReport,
        backfill,
    )
    from mainspring.data.layers.episode import Recorded
    from mainspring.data.layers.layer import (
        facts_table,
        find_layer,
        known_layers,
    )
    from mainspring.data.layers.pools import LocalPool, Pool, RayPool
    from mainspring.data.layers.producer import (
        LayerSpec,
        Made,
        Producer,
        load_producer,
        producer,
    )
    from mainspring.data.loader.batches import gather
    from mainspring.data.loader.cache import Cache
    from mainspring.data.loader.loader import Component, Loader, Sampling
    from mainspring.data.loader.pixels import yuv_to_rgb
    from mainspring.data.loader.ring import Batch
    from mainspring.data.loader.stream import BatchStream
    from mainspring.data.loss import Loss
    from mainspring.data.options import IngestOptions
    from mainspring.data.readers.episodes.lerobot import is_lerobot_set
    from mainspring.data.readers.episodes.table.proposal import (
        TableProposal,
        propose_table,
    )
    from mainspring.data.readers.episodes.table.recipe import TableRecipe
    from mainspring.data.readers.given import definitions_in
    from mainspring.data.readers.log import Log, Messages, Topic, open_log
    from mainspring.data.recording import EpisodeWriter
    from mainspring.data.show import contact_sheet
    from mainspring.data.showing import ColumnCurve, episode_curves, picture_strip
    from mainspring.data.views.build import ViewProgress, build_view
    from mainspring.data.views.manifest import Split, ViewManifest, ViewRecipe
    from mainspring.data.views.moments import Statistics
    from mainspring.data.views.view import View, open_view
else:
    __getattr__, __dir__ = names_of(__name__)
