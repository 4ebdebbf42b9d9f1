"""Two servers on one PostgreSQL: one leads; the other follows, serves and takes over when the first is killed."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from mainspring.app.base.home import Config
from mainspring.app.sdk.lab import Lab, job
from mainspring.domain.errors import InvalidSpec
from mainspring.domain.life import JobState
from tests.app.conftest import clusters, until


def _lab(folder: Path, url: str, first: Lab | None = None) -> Lab:
    lab = Lab(folder)
    objects = "" if first is None else first.home.objects_url(first.home.config())
    lab.home.write_config(Config(clusters=clusters(), database=url, objects=objects))
    return lab


@pytest.mark.slow
def test_server_killed_another_that_shares_its_store_leads_and_what_was_said_counts(
    tmp_path: Path, postgres_url: str
) -> None:
    first = _lab(tmp_path / "first", postgres_url)
    second = _lab(tmp_path / "second", postgres_url, first)
    try:
        first.up(port=0)
        for name in ("key", "token"):
            shutil.copy(first.home.path / name, second.home.path / name)
        second.up(port=0)
        through_follower = second.run(job("by-follower", "echo followed", on=["h100"])).id
        assert first.wait(through_follower, timeout_s=60).state is JobState.SUCCEEDED
        assert [event.kind for event in second.events(through_follower)] == [
            event.kind for event in first.events(through_follower)
        ]
        assert second.fleet()[0].inventory == first.fleet()[0].inventory
        record = first.home.server()
        assert record is not None
        os.kill(record.pid, signal.SIGKILL)
        waits = second.run(job("after", "echo after", on=["h100"])).id
        assert second.wait(waits, timeout_s=60).state is JobState.SUCCEEDED
        assert second.status(through_follower).state is JobState.SUCCEEDED
        first.up()
        until(lambda: first.status(waits).state is JobState.SUCCEEDED, "the first to follow")
    finally:
        for lab in (first, second):
            lab.down()


def test_password_in_the_configuration_is_refused_and_not_shown(tmp_path: Path) -> None:
    for url in ("postgresql://ms:hunter2@db/ms", "postgresql:///ms?host=db&password=hunter2"):
        with pytest.raises(InvalidSpec, match="PGPASSFILE") as told:
            Config(database=url)
        assert "hunter2" not in str(told.value)
