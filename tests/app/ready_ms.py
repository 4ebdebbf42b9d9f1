"""`ms` for tests that run it by the dozen: each command is forked off a process that has the program's modules already.

Words, folder, environment, files and end are the command's own, as those of the program; what Python takes to load
modules, two thirds of a command, is taken once. Left to the program itself: how it is started, signals, terminals.
"""

from __future__ import annotations

import gc
import marshal
import os
import select
import signal
import socket
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import NoReturn

BACKLOG = 16  # Commands at one time; a test has a few.
# What commands load when they are called.
MODULES = (
    *("anyio", "certifi", "h11", "httpcore", "httpx", "pydantic", "stringprep", "yaml"),
    "mainspring.app.base.code",
    "mainspring.app.cli.main",
    "mainspring.app.cli.cluster",
    "mainspring.app.cli.steering",
    "mainspring.app.cli.people.team",
    "mainspring.app.cli.people.token",
    "mainspring.app.render.plans",
    "mainspring.app.sdk.lab",
    "mainspring.app.server.daemon",
    "mainspring.engines.local.kind",
)
# Sends what it was called with, and its three files; ends as the command did.
COMMAND = """#!{python} -IS
import marshal, os, socket, sys
line = socket.socket(socket.AF_UNIX)
line.connect({place!r})
try:
    folder = os.getcwd()
except OSError:
    sys.exit("ready_ms is for folders that are there")
sent = marshal.dumps((sys.argv[1:], folder, dict(os.environ)))
socket.send_fds(line, [len(sent).to_bytes(8, "little")], [0, 1, 2])
line.sendall(sent)
sys.exit(int(line.recv(8) or b"70"))
"""


@cache
def ready_ms() -> str:
    """Returns the path of a program `ms`, alone in its folder; what is behind it ends with this process."""
    folder = Path(mkdtemp(prefix="ms-"))
    place = folder / "line"
    program = folder / "bin" / "ms"
    program.parent.mkdir()
    program.write_text(COMMAND.format(python=sys.executable, place=str(place)))
    program.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")}
    keeper = subprocess.Popen(  # Its standard input is closed when this process ends, however it does.
        [sys.executable, "-P", __file__, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    assert keeper.stdout is not None
    assert keeper.stdout.readline() == b"ready\n"
    _kept.append(keeper)
    return str(program)


def path_with_ready_ms() -> str:
    """Returns a search path on which `ms` is such a command, and `python` the one that runs the tests."""
    return os.pathsep.join([str(Path(ready_ms()).parent), str(Path(sys.executable).parent), os.environ["PATH"]])


_kept: list[subprocess.Popen[bytes]] = []


def _keep(folder: Path) -> None:
    """Answers every call by a command, until nobody is left who could call."""
    place = folder / "line"
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Nobody waits for those who answer.
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        listener.listen(BACKLOG)
        for name in MODULES:
            import_module(name)
        gc.freeze()  # Or every command would copy what it looks through for garbage.
        os.write(1, b"ready\n")
        while 0 not in select.select([listener.fileno(), 0], [], [])[0]:
            line, _ = listener.accept()
            with line:
                if os.fork() == 0:
                    listener.close()
                    _answer(line)
        rmtree(folder)


def _run() -> NoReturn:
    """Runs the command that `sys.argv` says, and ends without tidying up what was there before it."""
    code: object = 0
    tables = import_module("mainspring.app.render.tables")  # Which knew its width when it was loaded.
    for console, columns in ((tables.CONSOLE, tables.COLUMNS_PIPED), (tables.ERRORS, 80)):
        console.width = int(os.environ.get("COLUMNS", columns))
    try:
        import_module("mainspring.app.cli.main").main()
    except SystemExit as ended:
        code = ended.code
    if isinstance(code, str):
        sys.stderr.write(code + "\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _answer(line: socket.socket) -> None:
    """Runs one command in a process of its own, for as long as whoever called is there, and tells how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, files, _, _ = socket.recv_fds(line, 8, 3)
    sent = b""
    while len(sent) < int.from_bytes(size, "little"):
        sent += line.recv(1 << 20)
    words, folder, environment = marshal.loads(sent)
    command = os.fork()
    if command == 0:
        line.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = ["ms", *words]
        _run()
    ended = os.pidfd_open(command)
    if ended not in select.select([line.fileno(), ended], [], [])[0]:
        os.kill(command, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
    try:
        line.sendall(b"%d" % (code % 256))
    finally:
        os._exit(0)


if __name__ == "__main__":
    _keep(Path(sys.argv[1]))
