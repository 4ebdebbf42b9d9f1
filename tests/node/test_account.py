"""Ranks under another account: what an agent that is root does for them leads nowhere else. Most need root."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring.domain.errors import Unavailable
from mainspring.node.process.account import Account, SharedFolder
from mainspring.node.process.ranks import Guard, RankLog, RankProcess
from mainspring.node.process.stacks import dumped
from mainspring.node.snapshots.arena import file_of, memory_file, path_of

root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo python -m pytest tests/node/test_account.py")


@pytest.fixture
def shared() -> Iterator[SharedFolder]:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        os.chmod(name, 0o711)
        yield SharedFolder.made(Path(name, "agent"), "nobody")


async def _output(shared: SharedFolder, command: str, logs: Path) -> str:
    """Returns what a program of the account says, in the folder that is the account's."""
    guard = Guard(f"{shared.path}/")
    try:
        log = RankLog(logs / "rank-0.log", bytes_max=1 << 20)
        process = RankProcess(guard, log, f"{shared.path}/1.sock", None, shared.account)
        await process.start(("/bin/sh", "-c", command), environment={"PATH": os.defpath}, folder=shared.job / "code")
        await process.ended()
    finally:
        await asyncio.to_thread(guard.close)
    return process.last_words


@root
def test_rank_of_another_account_works_in_its_folder_and_has_no_right_of_its_agents(
    shared: SharedFolder, tmp_path: Path
) -> None:
    (shared.job / "code").mkdir()
    shared.account.own_all(shared.job)
    command = "touch made; stat -c %U made; id -u; grep -E 'Cap(Prm|Eff)|Groups' /proc/self/status"
    owner, user, *status = asyncio.run(_output(shared, command, tmp_path)).splitlines()
    assert (owner, user) == ("nobody", str(shared.account.uid))
    groups, *capabilities = (line.split()[1:] for line in status)
    assert groups == [str(group) for group in shared.account.groups]
    assert capabilities == [["0" * 16]] * 2


@root
def test_rank_whose_folder_has_become_a_link_is_not_led_where_its_account_may_not_go(
    shared: SharedFolder, tmp_path: Path
) -> None:
    closed = tmp_path / "closed"
    (closed / "within").mkdir(parents=True)
    closed.chmod(0o700)
    (closed / "within" / "file").write_text("not for you")
    (shared.job / "code").symlink_to(closed / "within")
    shared.account.own_all(shared.job)
    assert "not for you" not in asyncio.run(_output(shared, "cat file", tmp_path))
    assert (closed / "within").stat().st_uid == (closed / "within" / "file").stat().st_uid == 0


@root
def test_stacks_of_what_is_not_the_ranks_are_not_told(shared: SharedFolder, tmp_path: Path) -> None:
    async def look() -> str:
        guard = Guard(f"{shared.path}/")
        log = RankLog(tmp_path / "rank-0.log", bytes_max=1 << 20)
        process = RankProcess(guard, log, f"{shared.path}/1.sock", None, shared.account)
        try:
            await process.start(("/bin/sleep", "60"), environment={"PATH": os.defpath}, folder=Path("/"))
            own, claimed = await dumped(process, process.pid), await dumped(process, os.getpid())
            process.signal(signal.SIGKILL)
            await process.ended()
        finally:
            await asyncio.to_thread(guard.close)
        assert own.text
        return claimed.text.split("\nsyscall")[0] if claimed == own else f"another's: {claimed.text}"

    assert not asyncio.run(look()).startswith("another's")


@root
@pytest.mark.parametrize("user", ["root", "nobody-of-that-name"])
def test_account_of_root_or_of_nobody_is_refused(user: str) -> None:
    with pytest.raises(Unavailable, match=user):
        Account.named(user)


@root
def test_shared_folder_that_is_there_already_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(Unavailable, match="there"):
        SharedFolder.made(tmp_path / "there", "nobody")


def test_files_that_are_handed_over_are_snapshots_and_nothing_else_that_is_open(tmp_path: Path) -> None:
    memory = memory_file("mainspring-arena")
    unnamed = os.open(tmp_path, os.O_TMPFILE | os.O_RDWR)
    (tmp_path / "order.json").write_text("secret")
    named = os.open(tmp_path / "order.json", os.O_RDONLY)
    folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    pipe = os.pipe()
    try:
        assert [file_of(path_of(file)) for file in (memory, unnamed)] == [memory, unnamed]
        assert [file_of(path_of(file)) for file in (named, folder, *pipe)] == [None] * 4
        others = ["", "/", str(tmp_path / "order.json"), f"/proc/1/fd/{memory}", f"{path_of(memory)}/", path_of(-1)]
        others += [path_of(memory).replace("/fd/", "/fd/../fd/"), f"/proc/self/fd/{memory}", path_of(10**30)]
        assert [file_of(path) for path in others] == [None] * len(others)
    finally:
        for file in (memory, unnamed, named, folder, *pipe):
            os.close(file)
