from __future__ import annotations

import io
import shutil
import stat
import subprocess
import sys
import tarfile
import warnings
import zipfile
from pathlib import Path

import boto3  # type: ignore[import-untyped]
import h5py
import numpy as np
import pytest
from tests.data.catalog import s3
from tests.data.intake.web import STALL_S_MAX, serving
from tests.data.making import record, record_many, write_lerobot_v2, write_lerobot_v3

from mainspring.app.sdk.lab import Lab
from mainspring.data.intake.ingest import ingest_units
from mainspring.data.intake.report import IngestReport
from mainspring.data.intake.staging.port import Wait
from mainspring.data.intake.staging.source import StagingOptions, opened_sources
from mainspring.domain.errors import Conflict, DamagedData, InvalidInput, NotFound, Unavailable
from mainspring.objects import ObjectStore, open_store
from mainspring.testing.time_and_chance import FakeClock

pytestmark = pytest.mark.slow  # Most write videos, and speak to servers.


def taken(
    tmp_path: Path,
    store: ObjectStore,
    *sources: Path | str,
    dataset: str = "pick",
    budget_bytes: int | None = None,
    options: dict[str, str] | None = None,
    wait: Wait = lambda _: None,
) -> IngestReport:
    """Ingests sources as a lab does."""
    how = StagingOptions(
        cache=tmp_path / "cache", wait=wait, store=options or {}, signed=True, budget_bytes=budget_bytes
    )
    with opened_sources(sources, how) as opened:
        return ingest_units(
            opened.units(), opened.survey(), store, dataset, clock=FakeClock(), recipe=None, staging=opened
        )


def _interrupted(_: float) -> None:
    raise Unavailable("wait", got="interrupted")


def zipped(folder: Path, path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, Path("set") / file.relative_to(folder))
    return path


def tarred(folder: Path, path: Path) -> Path:
    kind = path.suffix.lstrip(".")
    with tarfile.open(path, "w" if kind == "tar" else f"w:{kind}") as archive:  # type: ignore[call-overload]
        archive.add(folder, "set")
    return path


@pytest.mark.parametrize("name", ["set.zip", "set.tar", "set.tar.gz"])
def test_archive_of_a_dataset_gives_the_same_version_as_its_folder_and_is_read_once(tmp_path: Path, name: str) -> None:
    folder = write_lerobot_v2(tmp_path / "set", [12, 15], video=True)
    made = (zipped if name.endswith("zip") else tarred)(folder, tmp_path / name)
    plain = taken(tmp_path, open_store("memory://"), folder)
    store = open_store("memory://")
    first = taken(tmp_path, store, made)
    assert (first.refused, first.episodes) == (0, 2)
    assert first.version is not None
    assert plain.version is not None
    assert first.version.id == plain.version.id
    again = taken(tmp_path, store, made)
    assert (again.known, again.read_bytes) == (2, 0)


def test_what_an_archive_must_not_hold_is_left_out_by_name_and_the_rest_is_taken(tmp_path: Path) -> None:
    record(tmp_path / "a.mcap")
    data = (tmp_path / "a.mcap").read_bytes()
    with tarfile.open(tmp_path / "set.tar", "w") as archive:
        for name in ("a.mcap", "../up.mcap", "/etc/root.mcap", "twice.mcap", "twice.mcap", "file", "file/inner.mcap"):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        for kind, name in (
            (tarfile.SYMTYPE, "link.mcap"),
            (tarfile.LNKTYPE, "hard.mcap"),
            (tarfile.CHRTYPE, "tty.mcap"),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
    report = taken(tmp_path, open_store("memory://"), tmp_path / "set.tar")
    assert report.episodes == 1
    assert {left.source: left.reason.split(":")[0] for left in report.left_out} == {
        "../up.mcap": "a path that leaves the source",
        "/etc/root.mcap": "a path that leaves the source",
        "twice.mcap": "2 files have this name, and nothing says which of them counts",
        "file/inner.mcap": "a file inside 'file', which is a file too",
        "link.mcap": "a link",
        "hard.mcap": "a link",
        "tty.mcap": "a device or pipe",
    }
    assert not (tmp_path / "up.mcap").exists()


def test_zip_members_that_lie_or_hide_are_left_out_by_name(tmp_path: Path) -> None:
    data = record(tmp_path / "a.mcap").read_bytes()
    with warnings.catch_warnings(), zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        warnings.simplefilter("ignore")  # Of the name that comes twice.
        archive.writestr("dir\\b.mcap", data)
        archive.writestr("../up.mcap", data)
        archive.writestr("__MACOSX/._a.mcap", b"mac")
        link = zipfile.ZipInfo("link.mcap")
        link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
        archive.writestr("twice.mcap", data)
        archive.writestr("twice.mcap", data)
        archive.writestr("secret.mcap", data)
    raw = bytearray((tmp_path / "set.zip").read_bytes())
    at = raw.rfind(b"PK\1\2", 0, raw.rfind(b"secret.mcap"))
    raw[at + 8] |= 1  # In the directory's entry: encrypted.
    (tmp_path / "set.zip").write_bytes(raw)
    report = taken(tmp_path, open_store("memory://"), tmp_path / "set.zip")
    assert report.episodes == 1
    assert {left.source: left.reason.split(":")[0] for left in report.left_out} == {
        "../up.mcap": "a path that leaves the source",
        "link.mcap": "a link",
        "twice.mcap": "2 files have this name, and nothing says which of them counts",
        "secret.mcap": "encrypted",
    }


def test_zip_whose_bytes_are_damaged_keeps_what_is_sound(tmp_path: Path) -> None:
    made = zipped(record_many(tmp_path / "raw", 2), tmp_path / "set.zip")
    with zipfile.ZipFile(made) as archive:
        at = archive.getinfo("set/001.mcap").header_offset + 200
    raw = bytearray(made.read_bytes())
    raw[at] ^= 0xFF
    made.write_bytes(raw)
    report = taken(tmp_path, open_store("memory://"), made)
    assert report.episodes == 1
    assert [left.source for left in report.left_out] == ["set/001.mcap"]


def test_archive_of_little_that_unpacks_to_much_is_refused_before_it_fills_the_disk(tmp_path: Path) -> None:
    made = zipped(record_many(tmp_path / "raw", 1), tmp_path / "bomb.zip")
    raw = bytearray(made.read_bytes())
    raw[(at := raw.find(b"PK\1\2")) + 24 : at + 28] = (3 << 29).to_bytes(4, "little")  # How long the member will be.
    made.write_bytes(raw)
    with pytest.raises(InvalidInput, match="at most 200 times its own size"):
        taken(tmp_path, open_store("memory://"), made)


@pytest.mark.parametrize("name", ["set.zip", "set.tar", "set.tar.gz", "set.tar.zst"])
def test_archive_that_is_none_is_refused_as_what_it_is(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"nothing of the kind" * 40)
    with pytest.raises(DamagedData, match="archive"):
        taken(tmp_path, open_store("memory://"), tmp_path / name)


def test_tar_that_was_cut_off_gives_what_came_before_and_says_so(tmp_path: Path) -> None:
    made = tarred(record_many(tmp_path / "raw", 3), tmp_path / "set.tar")
    with tarfile.open(made) as archive:
        end = archive.getmember("set/002.mcap").offset_data + 100
    made.write_bytes(made.read_bytes()[:end])
    report = taken(tmp_path, open_store("memory://"), made)
    assert report.episodes == 2
    assert any("cut off" in left.reason for left in report.left_out)


@pytest.mark.parametrize(
    "make", [lambda root: write_lerobot_v2(root, [12, 15], video=True), lambda root: write_lerobot_v3(root, [12, 15])]
)
def test_dataset_behind_http_is_found_by_its_meta_and_a_break_costs_only_the_rest(tmp_path: Path, make) -> None:  # type: ignore[no-untyped-def]
    folder = make(tmp_path / "site" / "lab" / "stack")
    plain = taken(tmp_path, open_store("memory://"), folder)
    video = max((path for path in folder.rglob("*.mp4")), key=lambda path: path.stat().st_size)
    name = video.relative_to(tmp_path / "site").as_posix()
    with serving(tmp_path / "site") as site:
        site.break_at = {name: 1_500}
        store = open_store("memory://")
        report = taken(tmp_path, store, f"{site.url}/lab/stack/")
        assert (report.refused, report.episodes) == (0, 2)
        assert report.version is not None
        assert plain.version is not None
        assert report.version.id == plain.version.id
        assert site.sent[name] == video.stat().st_size
        site.sent.clear()
        again = taken(tmp_path, store, f"{site.url}/lab/stack/")
        assert (again.known, again.read_bytes) == (2, 0)
        assert sum(site.sent.values()) <= (folder / "meta/info.json").stat().st_size  # Which says what else is there.


def test_ingest_that_ended_in_the_middle_of_a_file_goes_on_there(tmp_path: Path) -> None:
    record_many(tmp_path / "site", 2)
    (tmp_path / "site" / "files.txt").write_text(
        "000.mcap\n001.mcap\n# nothing\n\ngone.mcap\nhttps://else/where.mcap\n"
    )
    size = (tmp_path / "site" / "001.mcap").stat().st_size
    with serving(tmp_path / "site") as site:
        store = open_store("memory://")
        address = f"{site.url}/files.txt"
        site.break_at = {"001.mcap": 1_000}
        with pytest.raises(Unavailable, match="interrupted"):
            taken(tmp_path, store, address, wait=_interrupted)
        report = taken(tmp_path, store, address)
        assert site.sent["001.mcap"] == size
        assert report.episodes == 2
        assert {left.source: left.reason for left in report.left_out} == {
            "gone.mcap": "named by the list, and not there",
            "https://else/where.mcap": "not relative to its list",
        }


def test_server_that_answers_no_head_and_one_that_moves_files_are_understood(tmp_path: Path) -> None:
    record(tmp_path / "site" / "real" / "a.mcap")
    with serving(tmp_path / "site") as site:
        site.heads = False
        site.moved = {"a.mcap": "/real/a.mcap", "loop.mcap": "/loop.mcap"}
        assert taken(tmp_path, open_store("memory://"), f"{site.url}/a.mcap").episodes == 1
        with pytest.raises(InvalidInput, match="redirects"):
            taken(tmp_path, open_store("memory://"), f"{site.url}/loop.mcap")
        site.moved = {"a.mcap": "file:///etc/passwd"}
        with pytest.raises(InvalidInput, match="a redirect to file"):
            taken(tmp_path, open_store("memory://"), f"{site.url}/a.mcap")


def test_file_that_changes_at_its_source_is_read_again_and_never_mixed(tmp_path: Path) -> None:
    record(tmp_path / "site" / "a.mcap", seed=1)
    with serving(tmp_path / "site") as site:
        store = open_store("memory://")
        first = taken(tmp_path, store, f"{site.url}/a.mcap")
        record(tmp_path / "site" / "a.mcap", seed=2)
        second = taken(tmp_path, store, f"{site.url}/a.mcap")
    assert (first.added, second.added, second.known) == (1, 1, 0)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("ftp://host/x", "ftp://"),
        ("http://example.com/x", "plain http only to this machine"),
        ("https://me:secret@example.com/x", "a password in the address"),
    ],
)
def test_address_that_is_not_read_is_refused_without_its_secrets(tmp_path: Path, address: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as error:
        taken(tmp_path, open_store("memory://"), address)
    assert "secret" not in str(error.value)


def test_address_without_a_dataset_says_what_is_looked_for(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    with serving(tmp_path / "site") as site, pytest.raises(NotFound, match=r"meta/info\.json"):
        taken(tmp_path, open_store("memory://"), f"{site.url}/nothing/")


def test_stage_stays_within_its_budget_and_two_cannot_fill_one(tmp_path: Path) -> None:
    record_many(tmp_path / "raw", 6)
    made = zipped(tmp_path / "raw", tmp_path / "set.zip")
    largest = max(path.stat().st_size for path in (tmp_path / "raw").iterdir())
    report = taken(tmp_path, open_store("memory://"), made, budget_bytes=largest)
    assert report.episodes == 6
    how = StagingOptions(cache=tmp_path / "cache", wait=lambda _: None, store={}, budget_bytes=largest)
    with opened_sources([made], how) as opened:
        files = [file.path for unit in opened.units() for file in unit.files]
        for path in files:
            with opened.held([path]):
                on_disk = sum(file.stat().st_blocks * 512 for file in path.parent.iterdir())
                assert path.stat().st_blocks
                assert on_disk <= largest + 4_096 * len(files)
        with pytest.raises(Conflict, match="another process"), opened_sources([made], how):
            pass


def test_prefix_of_an_object_store_gives_the_same_version_as_its_folder(tmp_path: Path) -> None:
    folder = write_lerobot_v2(tmp_path / "my set:1", [12, 15], video=True)
    record(folder.parent / "alone.mcap", seed=9, state_dims=3, action_dims=2)
    plain = taken(tmp_path, open_store("memory://"), folder)
    with s3.moto(tmp_path) as server:
        options = dict(server.options)
        client = boto3.client(
            "s3",
            endpoint_url=options["endpoint"],
            region_name="us-east-1",
            aws_access_key_id=s3.KEY,
            aws_secret_access_key=s3.SECRET,
        )
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                client.upload_file(str(path), "lab", f"sets/my set:1/{path.relative_to(folder).as_posix()}")
        client.upload_file(str(folder.parent / "alone.mcap"), "lab", "alone.mcap")
        client.upload_file(str(zipped(folder, tmp_path / "set.zip")), "lab", "set.zip")
        store = open_store("memory://")
        first = taken(tmp_path, store, "s3://lab/sets/my set:1", options=options)
        assert first.version is not None
        assert plain.version is not None
        assert first.version.id == plain.version.id
        again = taken(tmp_path, store, "s3://lab/sets/my set:1/", options=options)
        assert (again.known, again.read_bytes) == (2, 0)
        inside = taken(tmp_path, open_store("memory://"), "s3://lab/set.zip", options=options)
        assert inside.version is not None
        assert inside.version.id == plain.version.id
        assert taken(tmp_path, open_store("memory://"), "s3://lab/alone.mcap", options=options).episodes == 1
        with pytest.raises(NotFound):
            taken(tmp_path, open_store("memory://"), "s3://lab/none", options=options)


def test_same_source_named_twice_is_read_once(tmp_path: Path) -> None:
    made = zipped(record_many(tmp_path / "raw", 2), tmp_path / "set.zip")
    shutil.rmtree(tmp_path / "raw")
    assert taken(tmp_path, open_store("memory://"), made, str(made)).recordings == 2


def test_file_whose_episodes_show_only_inside_is_looked_into_wherever_it_lies(tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    folder.mkdir()
    with h5py.File(folder / "demos.hdf5", "w") as file:
        for demo in range(3):
            values = np.random.default_rng(demo).normal(size=(12, 4))
            file[f"data/demo_{demo}/actions"] = values
            file[f"data/demo_{demo}/obs/joint_positions"] = values * 2
        file["data"].attrs["env_args"] = '{"env_name": "lift", "env_kwargs": {"control_freq": 20}}'
    plain = taken(tmp_path, open_store("memory://"), folder)
    assert plain.version is not None
    store = open_store("memory://")
    report = taken(tmp_path, store, zipped(folder, tmp_path / "set.zip"))
    assert report.version is not None
    assert (report.episodes, report.version.id) == (3, plain.version.id)
    again = taken(tmp_path, store, tmp_path / "set.zip")
    assert (again.known, again.read_bytes) == (3, 0)


def test_ingest_that_was_killed_goes_on_where_it_was_and_gives_the_same_version(tmp_path: Path) -> None:
    folder = write_lerobot_v2(tmp_path / "site" / "stack", [12, 15], video=True)
    plain = taken(tmp_path, open_store("memory://"), folder)
    name = sorted(path.relative_to(tmp_path / "site").as_posix() for path in folder.rglob("*.mp4"))[-1]
    program = (
        "import sys; from mainspring.app.sdk.lab import Lab; Lab(sys.argv[1]).data.ingest(sys.argv[2], dataset='pick')"
    )
    with serving(tmp_path / "site") as site:
        site.stalled = {name: 1_000}
        words = [sys.executable, "-c", program, str(tmp_path / "home"), f"{site.url}/stack/"]
        process = subprocess.Popen(words)
        assert site.stalls.wait(STALL_S_MAX)
        process.kill()
        process.wait()
        site.let_go.set()
        site.sent.clear()
        lab = Lab(tmp_path / "home")
        report = lab.data.ingest(f"{site.url}/stack/", dataset="pick")
        assert report.version is not None
        assert plain.version is not None
        assert report.version.id == plain.version.id
        again = lab.data.ingest(f"{site.url}/stack/", dataset="pick")
        assert (again.known, again.read_bytes) == (2, 0)
        assert site.sent[name] <= (tmp_path / "site" / name).stat().st_size
