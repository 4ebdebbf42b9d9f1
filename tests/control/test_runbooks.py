"""Runbooks: every alert has a page that is true, and the index is the one that follows from the alerts."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from mainspring.app.cli.main import app
from mainspring.control.service.alerts.rules import alerts
from mainspring.control.service.alerts.runbooks import index_of

RUNBOOKS = Path(__file__).parents[2] / "docs" / "runbooks"
PAGES = sorted(path for path in RUNBOOKS.glob("*.md") if path.name != "README.md")
COMMAND = re.compile(r"`(ms [^`]+)`|^(ms .+)$", re.MULTILINE)


def test_every_alert_has_a_page_and_no_page_is_of_none() -> None:
    assert {path.stem for path in PAGES} == {alert.runbook for alert in alerts()}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_names_its_alerts_says_what_they_mean_and_what_to_do(page: Path) -> None:
    text = page.read_text()
    named = re.findall(r"`(Mainspring\w+)`", text.partition("\n\n")[2].partition("\n\n")[0])
    assert named == [alert.name for alert in alerts() if alert.runbook == page.stem]
    assert [text.count(f"**{part}.**") for part in ("What it means", "Where to look", "What to do")] == [1, 1, 1]
    assert len(text.splitlines()) <= 45
    for link in re.findall(r"\]\(([^)#]+)", text):
        assert (page.parent / link).exists(), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_of_a_page_are_those_that_there_are(page: Path) -> None:
    for found in COMMAND.findall(page.read_text()):
        words = shlex.split("".join(found), comments=True)[1:]
        command: Any = typer.main.get_command(app)
        while hasattr(command, "get_command"):
            name = words.pop(0)
            command, known = command.get_command(None, name), command.list_commands(None)
            assert command is not None, f"{found}: {name} is none of {known}"
        options = {flag for param in command.params for flag in (*param.opts, *param.secondary_opts)}
        assert {word for word in words if word.startswith("--")} <= options, found


def test_the_index_is_the_one_that_follows_from_the_alerts() -> None:
    assert (RUNBOOKS / "README.md").read_text() == index_of(alerts())
