"""The verbs of `lab.data` by which versions go out in other formats."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from mainspring import data  # Loads its names when they are used, so that other verbs start fast.
from mainspring.app.sdk.intake import IntakeVerbs
from mainspring.objects import open_store


class ExportVerbs(IntakeVerbs):
    """How versions get out of a lab."""

    @property
    def scratch(self) -> Path:
        """Returns a local folder for files on their way."""
        return self._lab.home.cache / "scratch"

    def prepare_export(
        self,
        name: str,
        to: str,
        *,
        where: str = "",
        layers: Sequence[str] = (),
        cameras: Sequence[str] | None = None,
        without_cameras: Sequence[str] = (),
    ) -> data.Export:
        """Returns an export that nothing has been written of: its `lost` says what the format cannot hold.

        Args:
            name: NAME of a version.
            to: "lerobot-v3", "lerobot-v2.1", "mcap", "rlds", "hdf5" or "rerun".
            where: SQL over what is known of an episode, and over the facts of the layers; "" for all episodes.
            layers: Ids, or their beginnings, of layers whose columns go along.
            cameras: Which cameras go along; None for all.
            without_cameras: Which do not.
        """
        request = data.ExportRequest(
            where=where,
            layers=tuple(layers),
            cameras=None if cameras is None else tuple(cameras),
            without_cameras=tuple(without_cameras),
        )
        return data.prepare_export(
            self.store, data.resolve(self.store, name), data.export_format(to), request, scratch=self.scratch
        )

    def export(
        self,
        name: str,
        to: str,
        dest: Path | str,
        *,
        where: str = "",
        layers: Sequence[str] = (),
        cameras: Sequence[str] | None = None,
        without_cameras: Sequence[str] = (),
        strict: bool = False,
        progress: Callable[[data.ExportProgress], None] | None = None,
    ) -> data.ExportReport:
        """Writes a version in another format, and returns what was written. Repeated, it does what is missing.

        Args:
            name: See `prepare_export`.
            to: See `prepare_export`.
            dest: An empty folder, or the URL of an empty prefix of an object store.
            where: See `prepare_export`.
            layers: See `prepare_export`.
            cameras: See `prepare_export`.
            without_cameras: See `prepare_export`.
            strict: Whether to refuse when the format does not hold everything.
            progress: Called after each file, or files that belong together.

        Raises:
            Conflict: The destination holds something else.
        """
        prepared = self.prepare_export(
            name, to, where=where, layers=layers, cameras=cameras, without_cameras=without_cameras
        )
        return self.write_export(prepared, dest, strict=strict, progress=progress)

    def write_export(
        self,
        prepared: data.Export,
        dest: Path | str,
        *,
        strict: bool = False,
        progress: Callable[[data.ExportProgress], None] | None = None,
    ) -> data.ExportReport:
        """Writes what `prepare_export` returned.

        Args:
            prepared: The export.
            dest: See `export`.
            strict: See `export`.
            progress: See `export`.

        Raises:
            Conflict: The destination holds something else.
        """
        url = str(dest) if "://" in str(dest) else str(Path(dest).absolute())
        report = data.write_export(
            self.store, prepared, lambda: open_store(url), scratch=self.scratch, strict=strict, progress=progress
        )
        if "://" not in url:
            for folder in (Path(url, data.EXPORT_JOURNAL), Path(url, ".writing")):
                with contextlib.suppress(OSError):  # Empty now; one that is not stays.
                    folder.rmdir()
        return report
