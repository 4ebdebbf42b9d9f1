"""Durable state of jobs: one share a rank and one manifest a step, written last, that makes it real.

Writing:  seal(data, shards) -> Sealed; intact(data, sealed) -> bool
          write_share(store, job=, step=, file=share_file(claim, generation=, rank=), rank=, data=, shards=, sealed=,
                      state=) -> ShareEntry    (`sealed` is called while data is on its way; a repeat sends the rest)
          commit(store, manifest, replace=) -> bool
Fencing:  put_claim(store, job, claim); newest_claim(store, job) -> Claim | None   (claims compare)
Reading:  open_checkpoint(store, job, step) -> Checkpoint
              .manifest, .shards (file: the share's name), .bytes_read
              .read(pieces, into)             Piece.shard numbers Checkpoint.shards; buffers fastest when page-aligned
              .array(path, start=(), shape=None) -> array
              .arrays(paths) -> {path: array}
          load(store, job, step=None, parts=None) -> Loaded (step, state, arrays, manifest, passed_over)
          verify(store, job, step) -> Manifest
Listing:  durable_steps(store, job) -> newest first; read_manifest(store, job, step)
          job_folder(job) -> where all of it lies
Cleaning: prune(store, job, keep=, trusted=) -> steps deleted; withdraw(store, job, after) -> steps no longer durable
          collect(store, job, keep=, trusted=, dry_run=) -> Collected(steps, keys, size_bytes)
"""

from typing import TYPE_CHECKING

from mainspring.lazy import names_of

if TYPE_CHECKING:
    from mainspring.checkpoint.format import (
        KEEP_STEPS,
        Claim,
        Lineage,
        Manifest,
        ShareEntry,
        dtype_named,
        job_folder,
        manifest_key,
        segment_key,
        share_file,
        tail_key,
    )
    from mainspring.checkpoint.reader import (
        Checkpoint,
        open_checkpoint,
        read_manifest,
    )
    from mainspring.checkpoint.share import (
        Sealed,
        crc32c_of,
        intact,
        page_bytes_of,
        seal,
        write_share,
    )
    from mainspring.checkpoint.store import (
        Collected,
        Loaded,
        PassedOver,
        collect,
        commit,
        durable_steps,
        load,
        newest_claim,
        prune,
        put_claim,
        verify,
        withdraw,
    )
else:
    __getattr__, __dir__ = names_of(__name__)
