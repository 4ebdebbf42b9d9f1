from __future__ import annotations

import asyncio
import io
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

from mainspring.domain.errors import DamagedData, InvalidInput, NotFound
from mainspring.domain.job import Code
from mainspring.domain.wire import Shard, SnapshotCommit
from mainspring.node.arena import Arena
from mainspring.node.code import unpack_code
from mainspring.node.ranks import LAST_WORDS_BYTES, RankLog
from mainspring.objects import ObjectStore, open_store


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(f"file://{tmp_path / 'objects'}")


def put_code(store: ObjectStore, *members: tuple[str, bytes]) -> str:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    digest = blake3(buffer.getvalue()).hexdigest()
    store.put(f"code/{digest}.tar.gz", buffer.getvalue())
    return f"blake3:{digest}"


def test_code_unpacked_lies_in_its_folder(store: ObjectStore, tmp_path: Path) -> None:
    root = unpack_code(store, Code(tree=put_code(store, ("pkg/train.py", b"print(1)"))), tmp_path / "work")
    assert (root / "pkg" / "train.py").read_bytes() == b"print(1)"


def test_code_of_a_job_without_files_is_an_empty_folder(store: ObjectStore, tmp_path: Path) -> None:
    assert list(unpack_code(store, Code(), tmp_path / "work").iterdir()) == []


@pytest.mark.parametrize("folder", ["..", "pkg/../..", "absent", "pkg/train.py"])
def test_unpack_with_a_folder_that_is_not_inside_is_refused(store: ObjectStore, tmp_path: Path, folder: str) -> None:
    tree = put_code(store, ("pkg/train.py", b"print(1)"))
    assert unpack_code(store, Code(tree=tree, folder="pkg"), tmp_path / "work").name == "pkg"
    with pytest.raises(InvalidInput, match="folder"):
        unpack_code(store, Code(tree=tree, folder=folder), tmp_path / "other")


@pytest.mark.parametrize("name", ["../escaped", "/etc/escaped"])
def test_code_that_would_write_outside_its_folder_is_refused_or_kept_inside(
    store: ObjectStore, tmp_path: Path, name: str
) -> None:
    try:
        root = unpack_code(store, Code(tree=put_code(store, (name, b"x"))), tmp_path / "work")
    except InvalidInput:
        root = tmp_path / "work" / "code"
    assert not (tmp_path / "work" / "escaped").exists()
    assert not Path("/etc/escaped").exists()
    assert all(root in path.parents for path in root.rglob("*"))


def test_code_whose_bytes_are_not_its_name_is_damaged(store: ObjectStore, tmp_path: Path) -> None:
    good = put_code(store, ("a", b"a")).removeprefix("blake3:")
    store.put(f"code/{'0' * 64}.tar.gz", store.get(f"code/{good}.tar.gz"))
    with pytest.raises(DamagedData):
        unpack_code(store, Code(tree="blake3:" + "0" * 64), tmp_path / "work")


def test_code_that_is_not_stored_says_to_submit_again(store: ObjectStore, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="submit the job again"):
        unpack_code(store, Code(tree="blake3:" + "0" * 64), tmp_path / "work")


def commit(arena: Arena, step: int, data: bytes) -> int:
    slot = asyncio.run(arena.begin(len(data)))
    assert slot.offset >= 0, slot.reason
    with open(arena.path, "r+b") as file:
        file.seek(slot.offset)
        file.write(data)
    shard = Shard(
        path="x",
        dtype="uint8",
        global_shape=(len(data),),
        start=(0,),
        shape=(len(data),),
        offset=0,
        size_bytes=len(data),
    )
    assert arena.commit(SnapshotCommit(step=step, offset=slot.offset, shards=(shard,)))
    return slot.offset


def test_arena_bytes_changed_after_their_checksum_are_noticed(tmp_path: Path) -> None:
    arena = Arena(tmp_path)
    offset = commit(arena, 1, b"weights")
    held = arena.hold(1)
    assert held is not None
    assert held.sealed()[0].crc32c >= 0
    assert held.intact()
    with open(arena.path, "r+b") as file:
        file.seek(offset)
        file.write(b"W")
    assert not held.intact()
    held.release()


def test_arena_step_held_is_not_overwritten_while_newer_ones_come(tmp_path: Path) -> None:
    arena = Arena(tmp_path)
    commit(arena, 1, b"first")
    held = arena.hold(1)
    assert held is not None
    for step in range(2, 8):
        commit(arena, step, b"later")
    assert held.once_bytes().tobytes() == b"first"
    assert {1, 7} <= set(arena.steps)
    held.release()
    commit(arena, 8, b"later")
    commit(arena, 9, b"later")
    assert 1 not in arena.steps


def test_arena_steps_after_the_one_resumed_from_are_given_up(tmp_path: Path) -> None:
    arena = Arena(tmp_path)
    for step in (1, 2, 3):
        commit(arena, step, b"x")
    arena.discard_after(2)
    assert arena.steps == (1, 2)
    assert arena.hold(3) is None


def test_arena_commit_of_shards_outside_the_slot_is_refused(tmp_path: Path) -> None:
    arena = Arena(tmp_path)
    slot = asyncio.run(arena.begin(10))
    beyond = Shard(path="x", dtype="uint8", global_shape=(9,), start=(0,), shape=(9,), offset=2 << 20, size_bytes=9)
    assert not arena.commit(SnapshotCommit(step=1, offset=slot.offset, shards=(beyond,)))
    assert not arena.commit(SnapshotCommit(step=1, offset=12345, shards=()))
    assert arena.steps == ()


def test_arena_too_large_for_anything_says_so(tmp_path: Path) -> None:
    slot = asyncio.run(Arena(tmp_path).begin(1 << 60))
    assert slot.offset == -1
    assert "no room" in slot.reason


def test_rank_log_turns_over_at_its_bound_and_keeps_the_last_words(tmp_path: Path) -> None:
    log = RankLog(tmp_path / "rank-0.log", bytes_max=1_000)
    lines = [b"%06d\n" % number for number in range(1_000)]
    for line in lines:
        log.write(line)
    words = log.close()
    (older,) = tmp_path.glob("rank-0.log.*")
    kept = older.read_bytes() + (tmp_path / "rank-0.log").read_bytes()
    assert int(older.suffix[1:]) + (tmp_path / "rank-0.log").stat().st_size == len(b"".join(lines))
    assert len(kept) <= 2_000
    assert b"".join(lines).endswith(kept)
    assert words.endswith("000999")
    assert len(words) <= LAST_WORDS_BYTES


def test_rank_log_that_cannot_be_turned_over_loses_output_and_never_the_rank(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    log = RankLog(folder / "rank-0.log", bytes_max=10)
    log.write(b"12345678")
    shutil.rmtree(folder)
    for _ in range(3):
        log.write(b"lost but")
    assert log.close() == "12345678" + 3 * "lost but"


def test_arena_step_given_up_while_it_is_stored_is_not_current_though_taken_again(tmp_path: Path) -> None:
    arena = Arena(tmp_path)
    commit(arena, 1, b"old course")
    held = arena.hold(1)
    assert held is not None
    current = [held.current]
    arena.discard_after(0)
    commit(arena, 1, b"new course")
    assert [*current, held.current] == [True, False]
    held.release()


def test_arena_of_rank_is_reached_through_its_path_by_another_mapping(tmp_path: Path) -> None:
    arena = Arena(tmp_path)
    offset = commit(arena, 1, bytes(range(100)))
    shard = arena.shards_in_file(1)[0]
    assert shard.offset == offset
    mapped = np.fromfile(shard.file, dtype=np.uint8, count=100, offset=shard.offset)
    assert mapped.tobytes() == bytes(range(100))
