"""Releases of policies: numbered, published by two of three people, read by a client of TUF, revoked."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

import httpx
import pytest
from securesystemslib.signer import CryptoSigner
from tests.control.calling import Api
from tests.control.releasing import People, new_release
from tuf.api.metadata import Metadata, TargetFile

from mainspring.control.service.steering.repeats import KEPT_S
from mainspring.domain.answers import NewPolicyRelease, ReleaseState, Revocation, SignedText
from mainspring.domain.answers.policies.releases import GateSeen, GateStanding, artifact_key
from mainspring.domain.codec import encode
from mainspring.domain.errors import Conflict, DamagedData, InvalidInput, NotFound
from mainspring.domain.routes import KEY_HEADER
from mainspring.objects import open_store
from mainspring.robots.edge.trust import SignedFile, TrustFloor, refreshed
from mainspring.robots.releases.signing import new_root, read_server_key, signed_by

if TYPE_CHECKING:
    from tests.control.conftest import World

    from mainspring.domain.answers import ReleaseView

WEEK_S = 7 * 86_400.0


def make(world: World, *contents: bytes, **fields: object) -> ReleaseView:
    return world.control.releases.create(new_release(f"file://{world.objects}", *contents, **fields))


def find(world: World, people: People, path: str, *, kept: bytes = b"", floor: TrustFloor | None = None) -> SignedFile:
    with refreshed(
        people.root.encode(),
        kept,
        world.control.releases.metadata,
        now_s=world.clock.now_s(),
        floor=floor or TrustFloor(),
    ) as trusted:
        return trusted.find(path)


def test_release_is_published_once_two_of_three_people_have_signed(world: World) -> None:
    people = People(world.control)
    view = make(world)
    assert (view.release.reference, view.state) == ("arm@1", ReleaseState.PENDING)
    assert len(people.sign(view, keys=(0,)).signed) == 1
    assert world.control.releases.show("arm").state is ReleaseState.PENDING
    with pytest.raises(NotFound):
        world.control.releases.piece("releases", "arm.1.json")
    people.sign(view, keys=(0, 2))
    assert world.control.releases.show("arm").state is ReleaseState.PUBLISHED


def test_client_of_tuf_finds_a_release_and_every_file_of_it(world: World) -> None:
    people = People(world.control)
    view = make(world, b"base", b"adapter")
    people.sign(view)
    signed = find(world, people, view.release.target)
    text = world.control.releases.piece("releases", "arm.1.json")
    assert (signed.size_bytes, signed.sha256) == (len(text), hashlib.sha256(text).hexdigest())
    for file, data in zip(view.release.content.files, (b"base", b"adapter"), strict=True):
        folder, _, name = view.release.target_of_file(file).partition("/")
        assert find(world, people, f"{folder}/{name}").sha256 == hashlib.sha256(data).hexdigest()
        prefixed = f"{file.sha256}.{name}"  # As clients ask where snapshots are consistent.
        assert world.control.releases.piece(folder, prefixed, offset=1, limit=2) == data[1:3]
        assert world.control.releases.piece(folder, name, offset=99) == b""


def test_stranger_s_key_signs_nothing(world: World) -> None:
    people = People(world.control)
    view = make(world)
    stranger = signed_by(people.targets(view), [CryptoSigner.generate_ed25519()])
    with pytest.raises(InvalidInput, match="no signature that counts"):
        world.control.releases.put_targets(SignedText(text=stranger))


def test_targets_with_another_file_than_the_release_has_are_refused(world: World) -> None:
    people = People(world.control)
    made = people.targets(make(world))
    made.signed.targets["artifacts/evil"] = TargetFile.from_data("artifacts/evil", b"evil", ["sha256"])
    with pytest.raises(InvalidInput, match="other files"):
        world.control.releases.put_targets(SignedText(text=signed_by(made, people.keys)))


def test_targets_that_leave_out_what_is_published_are_refused(world: World) -> None:
    people = People(world.control)
    first = make(world)
    people.sign(first)
    second = make(world, b"other")
    with pytest.raises(InvalidInput, match="arm@1, which is published"):
        people.sign(second)
    people.sign(first, second)
    assert [view.state for view in world.control.releases.ls()] == [ReleaseState.PUBLISHED] * 2


def test_revoked_release_is_gone_for_robots_once_people_signed(world: World) -> None:
    people = People(world.control)
    first, second = make(world), make(world, b"other")
    people.sign(first, second)
    world.control.releases.revoke("arm@1", Revocation(reason="it drops cups"))
    people.sign(second)
    with pytest.raises(NotFound):
        find(world, people, first.release.target)
    assert find(world, people, second.release.target).size_bytes
    with pytest.raises(NotFound):
        world.control.releases.piece("releases", "arm.1.json")
    assert world.control.releases.show("arm@1").reason == "it drops cups"


def test_automatic_release_is_published_by_the_server_in_its_own_folder_alone(world: World) -> None:
    people = People(world.control, automatic=True)
    view = make(world, automatic=True)
    assert view.state is ReleaseState.PUBLISHED
    assert find(world, people, "automatic/arm.1.json").sha256 == view.sha256
    file = view.release.content.files[0]
    assert world.control.releases.piece("automatic", file.sha256) == b"weights"
    with pytest.raises(NotFound):
        find(world, people, "releases/arm.1.json")
    world.control.releases.revoke("arm@1", Revocation(reason="a test"))
    with pytest.raises(NotFound):
        find(world, people, "automatic/arm.1.json")


def test_release_under_a_key_asks_for_its_files_in_no_writers_turn_and_a_repeat_never(api: Api) -> None:
    world, headers = api.world, api.admin | {KEY_HEADER: '"once"'}
    control, objects = world.control, f"file://{world.objects}"
    asked = new_release(objects, b"weights")
    (file,) = asked.files

    def send(release: NewPolicyRelease = asked) -> httpx.Response:
        return api.http.post("/v1/releases", content=encode(release), headers=headers)

    open_store(objects).delete(artifact_key(file.sha256))
    api.problem(send(), 404)
    assert control.releases.ls() == ()
    assert new_release(objects, b"weights") == asked  # It is there again.
    first = send()
    assert first.status_code == 200
    open_store(objects).delete(artifact_key(file.sha256))
    assert send().content == first.content
    other = new_release(objects, b"other")
    api.problem(send(other), 422)
    world.clock.advance(KEPT_S)
    assert send(other).status_code == 200
    with control.store.joined():
        assert control.releases.create(asked).release.version == 3


def test_automatic_release_needs_people_who_let_the_server_sign(world: World) -> None:
    People(world.control)
    with pytest.raises(Conflict, match="do not let the server sign"):
        make(world, automatic=True)


@pytest.mark.parametrize("standing", [GateStanding.FAILED, GateStanding.UNDECIDED])
def test_gate_that_is_not_passed_keeps_a_release_unless_waived_by_name(standing: GateStanding, world: World) -> None:
    gate = GateSeen(name="pick", standing=standing)
    with pytest.raises(InvalidInput, match=f"gate pick is {standing.value}"):
        make(world, gates=(gate,))
    with pytest.raises(InvalidInput, match="no gate at all"):
        make(world, gates=())
    waived = (replace(gate, waived="for the bench"),)
    assert make(world, gates=waived).release.content.gates == waived
    with pytest.raises(InvalidInput, match="waived gate"):
        make(world, gates=waived, automatic=True)


def test_file_that_is_not_in_the_store_is_no_release(world: World) -> None:
    asked = new_release(f"file://{world.objects}")
    gone = replace(asked, files=(replace(asked.files[0], sha256="0" * 64),))
    with pytest.raises(NotFound, match="no such file"):
        world.control.releases.create(gone)


def test_timestamp_is_made_anew_after_an_hour_and_snapshots_before_they_end(world: World) -> None:
    people = People(world.control, automatic=True)
    view = make(world)
    people.sign(view)
    before = world.control.releases.trust().versions
    world.clock.advance(60.0)
    world.control.releases.metadata("timestamp.json")
    assert world.control.releases.trust().versions == before
    world.clock.advance(3_600.0)
    world.control.releases.metadata("timestamp.json")
    assert world.control.releases.trust().versions == {**before, "timestamp": before["timestamp"] + 1}
    for _ in range(20):  # Of a lab that makes no release: what robots read never ends.
        world.clock.advance(WEEK_S / 5)
        assert find(world, people, view.release.target).size_bytes


def test_root_is_followed_by_one_that_both_have_signed(world: World) -> None:
    people = People(world.control)
    view = make(world)
    people.sign(view)
    keys = [CryptoSigner.generate_ed25519() for _ in range(3)]
    server = {role: read_server_key(text) for role, text in world.control.releases.trust().server.items()}
    root = new_root([key.public_key for key in keys], server, world.clock.now_s())
    root.signed.version = 2
    with pytest.raises(InvalidInput, match="0 of 2"):
        world.control.releases.put_root(SignedText(text=signed_by(root, keys)))
    world.control.releases.put_root(SignedText(text=signed_by(root, people.keys[:2])))
    people.keys = keys
    people.sign(view)  # Robots believe the new people's targets.
    assert find(world, people, view.release.target).size_bytes


def test_root_of_one_signature_or_of_other_servers_is_refused(world: World) -> None:
    keys = [CryptoSigner.generate_ed25519() for _ in range(3)]
    server = {role: read_server_key(text) for role, text in world.control.releases.trust().server.items()}
    public = [key.public_key for key in keys]
    for made, why in (
        (new_root(public, server, world.clock.now_s(), threshold=1), "threshold of 1"),
        (new_root(public, {**server, "timestamp": keys[0].public_key}, world.clock.now_s()), "other keys"),
    ):
        with pytest.raises(InvalidInput, match=why):
            world.control.releases.put_root(SignedText(text=signed_by(made, keys)))
    for text in ("", "{}", "[1]", '{"signed": {}, "signatures": 3}', "[" * 2_000):
        with pytest.raises(InvalidInput):
            world.control.releases.put_root(SignedText(text=text))


def test_what_was_seen_is_a_floor_below_which_nothing_is_believed(world: World) -> None:
    people = People(world.control)
    people.sign(make(world))
    old = {
        name: world.control.releases.metadata(name) for name in ("timestamp.json", "2.snapshot.json", "2.targets.json")
    }
    people.sign(world.control.releases.show("arm@1"), make(world, b"other"))
    versions = world.control.releases.trust().versions

    def replayed(name: str) -> bytes:
        return old[name] if name in old else world.control.releases.metadata(name)

    floor = TrustFloor(versions=versions)
    with (
        pytest.raises(DamagedData, match="which was seen here"),
        refreshed(people.root.encode(), b"", replayed, now_s=world.clock.now_s(), floor=floor),
    ):
        pass


@pytest.mark.parametrize("lag_s", [-3 * 365 * 86_400.0, 0.0])
def test_metadata_that_ended_is_refused_also_by_a_clock_years_behind(lag_s: float, world: World) -> None:
    people = People(world.control)
    view = make(world)
    people.sign(view)
    files: dict[str, bytes] = {}

    def fetch(name: str) -> bytes:
        files[name] = world.control.releases.metadata(name)
        return files[name]

    now_s = world.clock.now_s()
    with refreshed(people.root.encode(), b"", fetch, now_s=now_s, floor=TrustFloor()) as trusted:
        floor, kept = trusted.floor, trusted.kept()
    later = replace(floor, issued_s=floor.issued_s + 2 * WEEK_S)  # It has seen a later timestamp since.

    def held(name: str) -> bytes:
        if name in files:
            return files[name]
        raise NotFound("fetch", on=name)

    with refreshed(people.root.encode(), kept, held, now_s=now_s + lag_s, floor=floor) as trusted:
        assert trusted.find(view.release.target).size_bytes
    for seen, now in ((later, now_s + lag_s), (floor, now_s + 2 * WEEK_S)):
        with pytest.raises(DamagedData), refreshed(people.root.encode(), kept, held, now_s=now, floor=seen):
            pass


def test_forged_metadata_is_refused(world: World) -> None:
    people = People(world.control)
    people.sign(make(world))

    def forged(name: str) -> bytes:
        data = world.control.releases.metadata(name)
        if not name.endswith("targets.json"):
            return data
        found = Metadata.from_bytes(data)
        found.signed.targets["releases/evil.1.json"] = TargetFile.from_data("releases/evil.1.json", b"", ["sha256"])  # type: ignore[attr-defined]
        return found.to_bytes()

    with (
        pytest.raises(DamagedData),
        refreshed(people.root.encode(), b"", forged, now_s=world.clock.now_s(), floor=TrustFloor()),
    ):
        pass
