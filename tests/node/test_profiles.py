"""Profiles that ranks leave: told to one rank alone, in files of its agent, brought to the store under the job."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mainspring.domain import wire
from tests.node.test_rank_supervisor import ask, place, posted, until


def test_profile_that_a_rank_leaves_in_files_of_its_agent_is_brought_to_the_store(tmp_path: Path) -> None:
    async def life() -> None:
        async with posted(tmp_path / "work", ranks=(0, 1)) as post:
            await post.begin(1, place(0), place(1))
            line, other = await post.join(1), await post.join(2)
            for each in (line, other):
                await post.welcome(each)
            post.crew.profile(wire.TakeProfile(generation=1, id="profile-1", steps=5, ranks=(1,)))
            for each, wanted in ((line, None), (other, wire.ProfileWanted(id="profile-1", steps=5))):
                answer = await ask(each, wire.StepReport(step=1))
                assert isinstance(answer, wire.StepReply)
                assert answer.profile == wanted
            slot = await ask(other, wire.ProfileBegin(id="profile-1", names=("host.xplane.pb", "about.json")))
            assert isinstance(slot, wire.ProfileSlot)
            for path, data in zip(slot.paths, (b"trace", b"{}"), strict=True):
                await asyncio.to_thread(Path(path).write_bytes, data)
            assert await ask(other, wire.ProfileCommit(id="profile-1")) == wire.Done()
            await until(lambda: bool(post.of(wire.ProfileKept)))
            names = ("host.xplane.pb", "about.json")
            assert post.of(wire.ProfileKept) == [wire.ProfileKept(rank=1, id="profile-1", names=names, size_bytes=7)]
            folder = tmp_path / "work/objects/checkpoints/job-1/profiles/profile-1/rank-00001"
            assert (folder / "host.xplane.pb").read_bytes() == b"trace"

    asyncio.run(life())


@pytest.mark.parametrize("name", ["../escape", "/etc/passwd", ".hidden", "a/../../b"])
def test_profile_of_a_name_that_leads_elsewhere_is_refused(name: str, tmp_path: Path) -> None:
    async def life() -> None:
        async with posted(tmp_path / "work") as post:
            await post.begin(1, place(0))
            line = await post.join(1)
            await post.welcome(line)
            for asked in (wire.ProfileBegin(id=name, names=("x",)), wire.ProfileBegin(id="p", names=(name,))):
                slot = await ask(line, asked)
                assert isinstance(slot, wire.ProfileSlot)
                assert (slot.paths, bool(slot.reason)) == ((), True)
            await ask(line, wire.ProfileCommit(id="p"))
            assert post.of(wire.ProfileKept)[0].failure == "the rank filled no files"

    asyncio.run(life())
