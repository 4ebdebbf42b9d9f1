"""A real lab whose store is put back: what came after the back-up is neither stopped nor run twice, and goes on."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from mainspring.app.base.backups import maker_in
from mainspring.app.base.home import Config
from mainspring.app.sdk.lab import Lab, job
from mainspring.control.store.databases.backups import back_up
from mainspring.control.store.databases.opening import parsed_url
from mainspring.control.store.restores.restoring import restore
from mainspring.domain.answers import HeldOnes
from mainspring.domain.errors import NotFound
from mainspring.domain.ids import AllocationId, ChipName, ClusterName
from mainspring.domain.life import JobState
from mainspring.engines.local.config import LocalCluster
from tests.app.conftest import until

SHORT, LONG = 42, 8
WAIT_S = 600.0  # Fifty agents on two cores.


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path / "home")
    cluster = LocalCluster(
        name=ClusterName("alpha"),
        chip=ChipName("h100"),
        chips_per_node=1,
        nodes=LONG + 6,
        dollars_per_chip_hour=3.0,
    )
    lab.home.write_config(Config(clusters=(cluster,)))
    lab.up(port=0)
    yield lab
    (tmp_path / "gate").touch()
    with suppress(AssertionError):
        until(lambda: not any(view.state in (JobState.RUNNING, JobState.STOPPING) for view in lab.ps()), "jobs to end")
    lab.down()


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_fifty_jobs_after_a_back_up_are_neither_stopped_nor_run_twice(lab: Lab, tmp_path: Path) -> None:
    starts, gate, file = tmp_path / "starts", tmp_path / "gate", tmp_path / "lab.backup"

    def run(name: str, *, long: bool = False) -> str:
        waits = f"; while [ ! -e {gate} ]; do sleep 0.2; done" if long else ""
        return lab.run(job(name, ["sh", "-c", f"echo {name} >> {starts}{waits}"], on=["h100"])).id

    def started() -> Counter[str]:
        return Counter(starts.read_text().split()) if starts.exists() else Counter()

    before = run("before", long=True)
    until(lambda: lab.status(before).state is JobState.RUNNING, "the first job to run", wait_s=WAIT_S)
    url = lab.home.database_url(lab.home.config())
    back_up(parsed_url(url), file, maker_in(lab.home, time.time()))
    long = [run(f"long-{number}", long=True) for number in range(LONG)]
    short = [run(f"short-{number}") for number in range(SHORT)]
    for each in short:
        assert lab.wait(each, timeout_s=WAIT_S).state is JobState.SUCCEEDED
    until(lambda: all(lab.status(each).state is JobState.RUNNING for each in long), "all to run", wait_s=WAIT_S)
    once = started()
    assert once == Counter(["before", *(f"long-{n}" for n in range(LONG)), *(f"short-{n}" for n in range(SHORT))])
    lab.down()
    restore(url, file, maker_in(lab.home, time.time()))
    lab.up()
    until(lambda: {one.job for one in lab.held() if not one.over} == set(long), "what runs to be held", wait_s=WAIT_S)
    assert not [one for one in lab.held() if one.over], "what is over and was never known holds up nobody"
    ended, adopted = long[:2], long[2:]
    done = lab.adopt_held(HeldOnes(allocations=tuple(map(AllocationId, adopted))))
    assert (len(done.adopted), done.refused) == (LONG - 2, ())
    lab.end_held(HeldOnes(allocations=tuple(map(AllocationId, ended))))
    until(lambda: lab.held() == (), "the others to end", wait_s=WAIT_S)
    going = [before, *adopted]
    until(lambda: all(lab.status(each).state is JobState.RUNNING for each in going), "leads to speak", wait_s=WAIT_S)
    assert started() == once
    gate.touch()
    for each in going:
        assert lab.wait(each, timeout_s=WAIT_S).state is JobState.SUCCEEDED
        assert len(lab.status(each).attempts) == 1
    assert started() == once
    for each in (*ended, *short):
        with pytest.raises(NotFound):
            lab.status(each)
