"""What readers that are not ours, and numbers that stand beside the data, have against a source."""

from __future__ import annotations

import json
import shutil
import sqlite3
import struct
import subprocess
import zipfile
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import google_crc32c
import h5py
import numpy as np
import pyarrow.parquet as pq
import zarr
from mcap.reader import NonSeekingReader, SeekingReader
from mcap_ros2.decoder import DecoderFactory
from pyulog import ULog
from rosbags.highlevel import AnyReader
from rosbags.interfaces import Connection


def reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error)[:120]}"


def _files(folder: Path, *suffixes: str) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in suffixes)


def mcap_objects(folder: Path) -> str:
    """Reads with `mcap`, forward and by index, checks the checksums, decodes ROS 2's messages, counts all."""
    for path in _files(folder, ".mcap"):
        try:
            counts: Counter[int] = Counter()
            with open(path, "rb") as file:
                for _, _, _ in NonSeekingReader(file, validate_crcs=True).iter_messages(log_time_order=False):
                    pass
            with open(path, "rb") as file:
                reader: Any = SeekingReader(file, validate_crcs=True, decoder_factories=[DecoderFactory()])
                summary = reader.get_summary()
                times = []
                coded: dict[str, bytes] = {}
                for schema, channel, message in reader.iter_messages():
                    if channel.message_encoding == "cdr" and schema is not None:
                        factory = reader._decoder_factories[0].decoder_for(channel.message_encoding, schema)
                        decoded = factory(message.data)
                        if codec := {"CompressedVideo": "h264", "CompressedImage": "mjpeg"}.get(schema.name[-15:]):
                            coded[codec] = coded.get(codec, b"") + bytes(decoded.data)
                    elif channel.message_encoding == "json":
                        json.loads(message.data)
                    counts[channel.id] += 1
                    times.append(message.log_time)
            for codec, data in coded.items():
                if said := _video_objects(Path("-"), data, codec):
                    return said
            statistics = summary.statistics if summary else None
            if statistics is not None:
                if dict(counts) != {key: count for key, count in statistics.channel_message_counts.items() if count}:
                    return "the statistics count other messages"
                if times and (min(times), max(times)) != (statistics.message_start_time, statistics.message_end_time):
                    return "the statistics tell other times"
        except Exception as error:  # noqa: BLE001 - whatever they raise is an objection.
            return reason(error)
    return ""


def _rosbags_object(paths: list[Path]) -> str:
    try:
        with AnyReader(paths) as reader:
            counts: Counter[int] = Counter()
            for connection, _, data in reader.messages():
                reader.deserialize(data, connection.msgtype)
                counts[connection.id] += 1
            connections: list[Connection] = reader.connections
            if any(counts[each.id] != each.msgcount for each in connections):
                return "the index counts other messages"
            if reader.message_count != counts.total():
                return "the metadata counts other messages"
    except Exception as error:  # noqa: BLE001
        return reason(error)
    return ""


def bag1_objects(folder: Path) -> str:
    """Reads and decodes everything with `rosbags`, and counts."""
    return _rosbags_object(_files(folder, ".bag"))


def bag2_objects(folder: Path) -> str:
    """The same, and SQLite's own check of its file."""
    for path in _files(folder, ".db3"):
        try:
            with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as database:
                found = database.execute("PRAGMA integrity_check").fetchall()
                if found != [("ok",)]:
                    return f"integrity_check: {str(found)[:100]}"
        except Exception as error:  # noqa: BLE001
            return reason(error)
    if said := mcap_objects(folder):
        return said
    return _rosbags_object([folder / "bag"])


def ulog_objects(folder: Path) -> str:
    """Reads with pyulog, which says whether a file is corrupt."""
    try:
        for path in _files(folder, ".ulg"):
            log = ULog(str(path))
            if log.file_corruption:
                return "pyulog calls it corrupt"
            if log.dropouts:
                return "it tells of dropouts"
    except Exception as error:  # noqa: BLE001
        return reason(error)
    return ""


def _video_objects(path: Path, data: bytes | None = None, codec: str = "") -> str:
    if shutil.which("ffmpeg") is None:
        return ""  # Nothing but our own decoding can say then.
    given = ["-f", codec, "-i", "-"] if codec else ["-i", str(path)]
    command = ["ffmpeg", "-v", "error", "-err_detect", "explode", "-xerror", *given, "-f", "null", "-"]
    done = subprocess.run(command, input=data, capture_output=True, check=False, timeout=60)
    said = done.stderr.decode("utf-8", "replace").strip()
    return f"ffmpeg: {said[:120]}" if done.returncode or said else ""


def lerobot_objects(folder: Path) -> str:
    """Reads with pyarrow, decodes strictly with `ffmpeg`, compares numbers with the statistics beside them."""
    try:
        rows, stats = [], []
        for path in _files(folder, ".parquet"):
            table = pq.ParquetFile(path, page_checksum_verification=True).read()
            names = table.column_names
            if "observation.state" in names:
                rows.append(table)
            if "stats/action/min" in names:
                made: dict[str, dict[str, Any]] = {"observation.state": {}, "action": {}}
                for name in made:
                    made[name] = {key: table[f"stats/{name}/{key}"][0].as_py() for key in ("min", "max", "mean")}
                stats.append(made)
        for path in folder.rglob("episodes_stats.jsonl"):
            stats += [json.loads(line)["stats"] for line in path.read_text().splitlines()]
        for table, told in zip(rows, stats, strict=False):
            for name in ("observation.state", "action"):
                values = np.array(table[name].to_pylist(), np.float64)
                for key, number in (("min", values.min(0)), ("max", values.max(0)), ("mean", values.mean(0))):
                    if not np.allclose(number, told[name][key], rtol=1e-5, atol=1e-6):
                        return f"the statistics tell another {key} of {name}"
    except Exception as error:  # noqa: BLE001
        return reason(error)
    return next((said for path in _files(folder, ".mp4") if (said := _video_objects(path))), "")


def hdf5_objects(folder: Path) -> str:
    """Reads every dataset with h5py."""
    try:
        for path in _files(folder, ".hdf5", ".h5"):
            with h5py.File(path) as file:
                file.visititems(lambda _, item: item[()] if isinstance(item, h5py.Dataset) else None)
    except Exception as error:  # noqa: BLE001
        return reason(error)
    return ""


def zarr_objects(folder: Path) -> str:
    """Reads every array with zarr, where `consolidated` metadata is not asked for; a zip's own checksums too."""
    try:
        for path in [*folder.glob("*.zarr"), *folder.glob("*.zip")]:
            if path.suffix == ".zip":
                with zipfile.ZipFile(path) as file:
                    if bad := file.testzip():
                        return f"zipfile calls {bad} damaged"
            store: Any = zarr.storage.ZipStore(path) if path.suffix == ".zip" else str(path)
            root: Any = zarr.open_group(store, mode="r")
            lengths = set()
            for _, array in sorted(root["data"].arrays()):
                lengths.add(len(array[:]))
            if len(lengths) > 1 or max(lengths) != root["meta/episode_ends"][:][-1]:
                return "arrays of several lengths"
    except Exception as error:  # noqa: BLE001
        return reason(error)
    return ""


def rlds_objects(folder: Path) -> str:
    """Compares the checksums of every record, and counts them."""
    try:
        for info in folder.rglob("dataset_info.json"):
            told = sum(
                int(count) for split in json.loads(info.read_text())["splits"] for count in split["shardLengths"]
            )
            records = sum(_records_of(path) for path in info.parent.iterdir() if ".tfrecord" in path.name)
            if told != records:
                return f"dataset_info.json tells {told} records, {records} are there"
    except Exception as error:  # noqa: BLE001
        return reason(error)
    return ""


def _records_of(path: Path) -> int:
    data, at, count = path.read_bytes(), 0, 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        for begin, size in ((at, 8), (at + 12, length)):
            checksum = google_crc32c.value(data[begin : begin + size])
            masked = ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF
            if struct.unpack_from("<I", data, begin + size)[0] != masked:
                raise ValueError(f"{path.name}: the checksum of record {count} differs")
        at, count = at + 16 + length, count + 1
    return count
