"""What a verb loads: the rooms and packages it needs, and no others; a process of its own each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mainspring.app.base.home import Home, ServerRecord
from mainspring.app.cli.main import GROUPS, VERBS
from mainspring.app.sdk.lab import Lab

HEAVY = {
    *("alembic", "blake3", "duckdb", "fastapi", "numpy", "obstore", "pyarrow", "pydantic", "sqlalchemy", "starlette"),
    *(
        "uvicorn",
        "yaml",
        "mainspring.control",
        "mainspring.data",
        "mainspring.engines.local",
        "mainspring.planner.cycle",
    ),
    *("mainspring.app.server", "mainspring.domain.wire.events", "mainspring.domain.wire.node"),
}
_SHOW = (
    "import sys\nfrom mainspring.app.cli.main import main\ntry: main()\nfinally: print('\\n' + ' '.join(sys.modules))"
)


def _loaded(home: Path, *words: str) -> set[str]:
    asked = [sys.executable, "-c", _SHOW, "--home", str(home), *words]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "also"),
    [
        (("--help",), {"httpx", "mainspring.app.render.tables", "mainspring.domain.answers.jobs"}),
        (("ps",), {"mainspring.domain.fleet", "mainspring.domain.plan", "rich.progress"}),
        (("status", "hello"), set()),
        (("why", "hello"), set()),
        (("logs", "hello"), set()),
        (("stop", "hello"), set()),
        (("team", "ls"), set()),
    ],
)
def test_verb_loads_nothing_heavy(words: tuple[str, ...], also: set[str], tmp_path: Path) -> None:
    home = Home.find(tmp_path)
    home.write_token("nobody's")
    home.write_server(ServerRecord(url="http://127.0.0.1:9", pid=0))  # Nobody listens: a verb has gone all its way.
    loaded = _loaded(tmp_path, *words)
    assert "mainspring.app.cli.main" in loaded
    assert sorted(loaded & (HEAVY | also)) == []


@pytest.mark.slow
def test_verb_that_submits_loads_no_server(tmp_path: Path) -> None:
    loaded = _loaded(tmp_path, "run", "--", "true")
    assert "mainspring.objects.open" in loaded
    assert not loaded & {
        "alembic",
        "fastapi",
        "mainspring.control",
        "mainspring.planner.cycle",
        "pyarrow",
        "sqlalchemy",
    }


@pytest.mark.slow
def test_verb_that_starts_a_server_loads_nothing_of_its_api(tmp_path: Path) -> None:
    try:
        loaded = _loaded(tmp_path, "up", "--port", "0")
    finally:
        assert Lab(tmp_path).down()
    assert "mainspring.control.connections" in loaded
    assert not loaded & {"alembic", "fastapi", "mainspring.control.api", "mainspring.planner.cycle", "sqlalchemy"}


def test_help_of_each_group_is_told_once() -> None:
    source = Path(sys.modules["mainspring.app.cli.main"].__file__ or "").parent
    assert not VERBS.keys() & GROUPS.keys()
    for module, told in GROUPS.values():
        assert told not in (source / f"{module.replace('.', '/')}.py").read_text()
