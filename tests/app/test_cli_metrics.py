"""`ms metrics` and `ms alerts`: files for Prometheus and Grafana, and what a server knows of its home for them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from mainspring.app.base.backups import backed_up_s, note_backup
from mainspring.app.base.home import Home
from mainspring.app.server.arrivals import Inboxes
from tests.app.ready_ms import ready_ms


def _ms(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "200", "MAINSPRING_HOME": str(folder / "home")}
    return subprocess.run([ready_ms(), *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=60)


def _alerts(text: str) -> dict[str, Any]:
    groups = yaml.safe_load(text)["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}


@pytest.mark.slow
def test_rules_are_written_with_pages_where_they_are_said_to_be_and_without_what_is_not_wanted(tmp_path: Path) -> None:
    done = _ms(tmp_path, "metrics", "rules", "out/rules", "--json")
    assert json.loads(done.stdout) == {"files": ["out/rules/mainspring.rules.yaml"]}
    found = _alerts((tmp_path / "out/rules/mainspring.rules.yaml").read_text())
    assert found["MainspringClusterSilent"] == {
        "alert": "MainspringClusterSilent",
        "expr": "max by (cluster) (mainspring_cluster_up) == 0",
        "for": "5m",
        "labels": {"severity": "page"},
        "annotations": {
            "summary": "Cluster {{ $labels.cluster }} does not answer: nothing starts or stops there.",
            "runbook_url": "docs/runbooks/cluster-silent.md",
        },
    }
    words = ("--runbooks", "https://wiki.example.org/run/", "--without", "MainspringBackupOld")
    assert _ms(tmp_path, "metrics", "rules", "out/rules", *words).returncode == 0
    fewer = _alerts((tmp_path / "out/rules/mainspring.rules.yaml").read_text())
    assert found.keys() - fewer.keys() == {"MainspringBackupOld"}
    assert fewer["MainspringNoLeader"]["annotations"]["runbook_url"] == "https://wiki.example.org/run/no-leader.md"


@pytest.mark.slow
def test_an_alert_that_there_is_not_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    for words in (("metrics", "rules", "out", "--without", "MainspringNoLeeder"), ("alerts", "MainspringNoLeeder")):
        done = _ms(tmp_path, *words)
        assert done.returncode == 3
        assert "MainspringNoLeader" in done.stderr
    assert not (tmp_path / "out").exists()
    told = json.loads(_ms(tmp_path, "alerts", "--json").stdout)
    assert {one["severity"] for one in told} == {"page", "ticket", "none"}


@pytest.mark.slow
def test_dashboards_are_written_a_file_each_with_panels_that_do_not_overlap(tmp_path: Path) -> None:
    files = json.loads(_ms(tmp_path, "metrics", "dashboards", "out", "--json").stdout)["files"]
    assert files == [f"out/mainspring-{name}.json" for name in ("promises", "lab", "clusters", "servers")]
    for file in files:
        dashboard = json.loads((tmp_path / file).read_text())
        panels = dashboard["panels"]
        assert dashboard["uid"] == Path(file).stem
        assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels) >= 9
        places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
        assert len(places) == len(panels)
        assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
        assert all(target["datasource"]["uid"] == "${source}" for panel in panels for target in panel["targets"])


def test_when_a_store_was_backed_up_is_known_to_its_home(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert backed_up_s(home, embedded=True) == 0
    assert backed_up_s(home, embedded=False) is None
    note_backup(home, 1_764_000_000.5)
    assert backed_up_s(home, embedded=True) == backed_up_s(home, embedded=False) == 1_764_000_000.5


def test_the_recording_that_waits_longest_is_told_and_what_was_refused_waits_no_more(tmp_path: Path) -> None:
    inboxes = Inboxes(tmp_path / "arrivals")
    assert inboxes.unread_s(1_000.0) == 0
    for name, came_s in (("pushes/b.mcap", 700), ("pushes/a.mcap", 400), ("pushes/.refused/c.mcap", 100)):
        path = inboxes.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (came_s, came_s))
    assert inboxes.unread_s(1_000.0) == 600
    (inboxes.folder / "pushes/a.mcap").unlink()
    assert inboxes.unread_s(1_000.0) == 300
