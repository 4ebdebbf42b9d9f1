"""Ranks under another account, by root and by a rule of sudo: what they get, who else does, what is left."""

from __future__ import annotations

import asyncio
import os
import pwd
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from mainspring.domain.errors import NotAllowed, Unavailable
from mainspring.domain.fleet import memory_of
from mainspring.node.process.account import Account
from mainspring.node.process.guard import SOCKET_VARIABLE
from mainspring.node.process.ranks import RankLog, RankProcess
from mainspring.node.process.stacks import Stacks, dumped
from mainspring.node.process.users import User, UserAccount
from mainspring.node.snapshots.arena import file_of, memory_file, path_of
from mainspring.node.supervise.rank_files import RankSockets
from tests.users import ROOT, SERVER, python_of_everybody, sudo_rule

from .rig import gone

Result = TypeVar("Result")
GAMES, NOBODY = "games", "nobody"
LOOKS_MAX, LOOK_S = 2_000, 0.01
CALL = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); print(s.recv(9) or b'hung up')"
# Leaves a child in a session of its own, which goes on when its parent is gone.
STRAY = "setsid sleep 1000 & echo $! $PPID; exec sleep 1000"


@pytest.fixture(params=["root", "sudo"])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Gives this process the rights of an agent: all, or those of an ordinary user with a rule of sudo."""
    python = python_of_everybody()
    if request.param == "root":
        yield "root"
        return
    with sudo_rule():
        own, sys.executable = sys.executable, python
        server = pwd.getpwnam(SERVER).pw_uid
        os.setresuid(server, server, 0)
        try:
            yield "sudo"
        finally:
            os.setresuid(0, 0, 0)
            sys.executable = own


@pytest.fixture
def runs(way: str) -> Iterator[Path]:
    """Gives a folder in which everybody makes folders."""
    with tempfile.TemporaryDirectory(prefix="runs-", dir="/tmp") as name:
        os.chmod(name, 0o1733)
        yield Path(name)


@pytest.fixture
def logs(way: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="logs-", dir="/tmp") as name:
        yield Path(name)


def as_user(folder: Path, life: Callable[[UserAccount], Awaitable[Result]], user: str = GAMES) -> Result:
    """Returns what came of something done under a user's account."""

    async def whole() -> Result:
        account = await UserAccount.begun(User.named(user), folder)
        try:
            return await life(account)
        finally:
            await account.close()

    return asyncio.run(whole())


async def started(account: Account, logs: Path, command: Sequence[str], folder: Path = Path("/")) -> RankProcess:
    log = RankLog(logs / f"{os.urandom(4).hex()}.log", bytes_max=1 << 20)
    process = RankProcess(account, log, f"{account.mark}1.sock", None)
    environment = {"PATH": os.defpath, SOCKET_VARIABLE: f"{account.mark}1.sock"}
    await process.start(tuple(command), environment=environment, folder=folder)
    return process


async def output(account: Account, logs: Path, *command: str, folder: Path = Path("/")) -> str:
    process = await started(account, logs, command, folder)
    await process.ended()
    return process.last_words


async def words(process: RankProcess) -> list[str]:
    for _ in range(LOOKS_MAX):
        if process.log.last_words:
            break
        await asyncio.sleep(LOOK_S)
    return process.log.last_words.split()


@pytest.mark.slow
def test_rank_of_another_account_works_in_its_folder_and_has_no_right_of_its_agents(runs: Path, logs: Path) -> None:
    command = "touch made; stat -c %U made .; id -u; grep -E 'Cap(Prm|Eff)|Groups|SigIgn' /proc/self/status"

    async def life(account: UserAccount) -> str:
        code = await account.unpack(None, "")
        return await output(account, logs, "/bin/sh", "-c", command, folder=code)

    owner, folder, user, *status = as_user(runs / "games", life).splitlines()
    games = pwd.getpwnam(GAMES)
    assert (owner, folder, user) == (GAMES, GAMES, str(games.pw_uid))
    told = {line.split(":")[0]: line.split()[1:] for line in status}
    assert told["Groups"] == [str(group) for group in sorted(os.getgrouplist(GAMES, games.pw_gid))]
    assert told["CapPrm"] == told["CapEff"] == ["0" * 16]
    assert int(told["SigIgn"][0], 16) >> (signal.SIGTERM - 1) & 1 == 0
    assert not (runs / "games").exists()


@pytest.mark.slow
def test_files_of_secrets_are_the_accounts_alone_and_go_with_it(runs: Path, logs: Path) -> None:
    async def life(account: UserAccount) -> tuple[Path, str, str]:
        folder = await account.write("secrets", {"KEY": "a secret"})
        told = await output(account, logs, "/bin/sh", "-c", f"cat {folder}/KEY; stat -c ' %a %U' {folder}/KEY {folder}")
        other = await UserAccount.begun(User.named(NOBODY), runs / "nobody")
        try:
            return folder, told, await output(other, logs, "/bin/cat", f"{folder}/KEY")
        finally:
            await other.close()

    folder, told, others = as_user(runs / "games", life)
    assert told.split() == ["a", "secret", "400", GAMES, "700", GAMES]
    assert "denied" in others
    assert not folder.parent.exists()


@pytest.mark.slow
def test_socket_of_a_rank_speaks_with_its_account_alone_even_where_its_folder_was_opened(
    runs: Path, logs: Path
) -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    async def life(account: UserAccount) -> list[str]:
        path, python = f"{account.mark}7.sock", sys.executable if os.geteuid() else python_of_everybody()
        sockets = RankSockets(account, path)
        await sockets.listen({"": greet})
        other = await UserAccount.begun(User.named(NOBODY), runs / "nobody")
        try:
            call = (python, "-S", "-c", CALL, path)
            said = [await output(one, logs, *call) for one in (account, other)]
            await output(account, logs, "/bin/sh", "-c", f"chmod 711 {account.mark}; chmod 666 {path}")
            return [*said, await output(other, logs, *call)]
        finally:
            sockets.close()
            await other.close()

    own, closed, opened = as_user(runs / "games", life)
    assert own == "b'hello'"
    assert "PermissionError" in closed
    assert opened == "b'hung up'"


@pytest.mark.slow
def test_rank_that_ends_takes_along_what_it_left_behind(runs: Path, logs: Path) -> None:
    async def life(account: UserAccount) -> list[int]:
        process = await started(account, logs, ("/bin/sh", "-c", STRAY))
        stray, _ = map(int, await words(process))
        process.signal(signal.SIGKILL)
        assert await process.ended() == -signal.SIGKILL
        assert gone(stray)
        return [process.pid, stray]

    assert all(map(gone, as_user(runs / "games", life)))


@pytest.mark.slow
def test_rank_whose_starter_is_killed_dies_with_it_and_nothing_is_left(runs: Path, logs: Path) -> None:
    memory = Path(memory_of(str(runs / "games")))

    async def life(account: UserAccount) -> list[int]:
        assert (await account.write("secrets", {"KEY": "a secret"})).parent == memory
        process = await started(account, logs, ("/bin/sh", "-c", STRAY))
        stray, starter = map(int, await words(process))
        account.signal(starter, signal.SIGKILL, group=False)
        assert await process.ended() == -signal.SIGKILL
        with pytest.raises(Unavailable, match=GAMES):
            await started(account, logs, ("/bin/true",))
        return [process.pid, stray]

    assert all(map(gone, as_user(runs / "games", life)))
    assert not memory.exists()
    assert not (runs / "games").exists()


@pytest.mark.slow
def test_stacks_of_what_is_not_the_ranks_are_not_told(runs: Path, logs: Path) -> None:
    async def life(account: UserAccount) -> tuple[Stacks, Stacks]:
        process = await started(account, logs, ("/bin/sleep", "60"))
        own, claimed = Stacks(top="not looked at"), Stacks()
        for _ in range(100):  # It may not sleep yet.
            own, claimed = await dumped(process, process.pid), await dumped(process, os.getpid())
            if own == claimed:
                break
        process.signal(signal.SIGKILL)
        await process.ended()
        return own, claimed

    own, claimed = as_user(runs / "games", life)
    assert own == claimed


@pytest.mark.slow
def test_program_that_does_not_exist_says_so(runs: Path, logs: Path) -> None:
    assert "/absent" in as_user(runs / "games", lambda account: output(account, logs, "/absent"))


def test_folder_that_somebody_else_has_made_is_not_used(runs: Path) -> None:
    (runs / "games").mkdir(mode=0o777)
    with pytest.raises(Unavailable, match="not this user's alone"):
        as_user(runs / "games", lambda account: account.unpack(None, ""))
    assert (runs / "games").exists()


@pytest.mark.slow
def test_user_for_whom_there_is_no_rule_is_refused_with_the_rule_to_add(way: str, runs: Path) -> None:
    if way == "root":
        pytest.skip("root needs no rule")
    with pytest.raises(NotAllowed, match=rf"{SERVER} ALL=\(uucp\) NOPASSWD: ALL"):
        as_user(runs / "uucp", lambda account: account.unpack(None, ""), user="uucp")


@pytest.mark.skipif(os.geteuid() != 0, reason=ROOT)
@pytest.mark.parametrize("user", ["root", "nobody-of-that-name"])
def test_account_of_root_or_of_nobody_is_refused(user: str) -> None:
    with pytest.raises(Unavailable, match=user):
        User.named(user)


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
