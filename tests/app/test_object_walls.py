"""Walls in the object store: an agent's credentials open its own job's part, for a while. On a real S3 server."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import obstore
import pytest
from obstore.exceptions import PermissionDeniedError
from obstore.store import S3Store

from mainspring.app.base.home import Config
from mainspring.app.sdk.lab import Lab, job
from mainspring.data import ViewRecipe, build_view, open_view
from mainspring.domain import codec, wire
from mainspring.domain.answers import JobView
from mainspring.domain.errors import InvalidSpec, NotAllowed, NotFound, Unavailable
from mainspring.domain.fleet import AgentOrder
from mainspring.domain.job import JobSpec
from mainspring.domain.life import JobState, ended
from mainspring.domain.wire.events.leads import CheckpointDurableEvent, GenerationResumedEvent
from mainspring.objects import Access, ObjectStore, check_grants, open_store
from mainspring.objects.sts import RoleSessions
from tests.app.conftest import clusters, halted, kill, kinds, until
from tests.app.test_run_as import COUNTER, python
from tests.data.catalog.s3 import CEPH, CEPH_MISSING, ROLE, SECRET, Role, Server, moto, rados_gateway
from tests.data.making import record_many, version_of
from tests.node.conftest import make_rig
from tests.node.rig import JOB, Rig
from tests.users import LIBRARIES, USERS

__all__ = ["make_rig", "python"]
URL = "s3://lab/objects"
# Looks for credentials wherever a job may look, and asks the store without any; tells what it found.
SPY = """
import glob, json, os, sys, urllib.error, urllib.request
from pathlib import Path

def read(path):
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""

def status(url):
    try:
        return urllib.request.urlopen(url).status
    except urllib.error.HTTPError as error:
        return error.code

endpoint, *paths = sys.argv[1:]
files = {*paths, *glob.glob("/proc/[0-9]*/environ"), *glob.glob(os.path.expanduser("~/.aws/*"))}
files |= {str(path) for path in Path.cwd().parent.rglob("*") if path.is_file()}
print(json.dumps({
    "environ": sorted(name for name in os.environ if name.startswith("AWS_")),
    "found": sorted(path for path in files if b"SECRET_ACCESS" in read(path) or b"secret_access" in read(path)),
    "readable": sorted(path for path in paths if read(path)),
    "without": [status(endpoint + "/lab/objects/" + key) for key in os.environ["KEYS"].split()],
    "list": [status(endpoint + "/lab" + words) for words in ("", "?list-type=2&prefix=objects/")],
}))
"""
# Reads the view that its spec names, and tries all else that its credentials could be good for; tells what came of it.
READER = """
import json, os, sys
from pathlib import Path
from mainspring.data import guard, open_view
from mainspring.objects import Blob, fetch_blob, open_store
from mainspring.session import join, open_view_store

URL, mine, others, cache, keys = *sys.argv[1:5], json.loads(sys.argv[5])
session = join()

def came_of(work):
    try:
        return repr(work())
    except Exception as error:
        return type(error).__name__

store = open_view_store(URL, mine)
view = open_view(store, mine, Path(cache), "train")
guard(store, view)
tries = {
    "other view": lambda: open_view_store(URL, others),
    "its manifest": lambda: store.get(f"views/{others}.json"),
    **{f"list {folder}": lambda folder=folder: store.list(folder) for folder in ("", "views", "blobs", "catalog")},
    **{f"get {key}": lambda key=key: store.get(key) for key in keys},
    **{f"put {key}": lambda key=key: store.put(key, b"") for key in (f"views/{mine}.json", "blobs/aa/bb", *keys)},
    "delete": lambda: store.delete(f"views/{mine}.json"),
    "without": lambda: open_store(URL).get(f"views/{mine}.json"),
}
print(json.dumps({
    "environ": sorted(name for name in os.environ if name.startswith("AWS_")),
    "rows": view.rows,
    "first": view.take("action", view.episode_starts[:1]).tolist(),
    "tried": {name: came_of(tried) for name, tried in tries.items()},
}))
"""
# Reports a step whenever it can read a view.
POLLER = """
import sys, threading
from mainspring.domain.errors import NotAllowed
from mainspring import session as entry

session = entry.join()
store = entry.open_view_store(sys.argv[1], "a") if sys.argv[2:] else entry.open_named_store(sys.argv[1])
step = 0
while True:
    try:
        step += store.get("views/a.json") == b"a view"
        session.report(step)
    except NotAllowed:
        pass
    threading.Event().wait(0.02)
"""


@pytest.fixture(scope="module")
def gateway() -> Iterator[Server]:
    """Gives a gateway that has the role; credentials of its owner are in this process's environment."""
    if absent := [name for name in CEPH if shutil.which(name) is None]:
        pytest.skip(f"{CEPH_MISSING} (absent: {', '.join(absent)})")
    with tempfile.TemporaryDirectory(dir="/tmp") as name, rados_gateway(Path(name)) as server:
        Role(folder=server.folder).make()
        yield server


@pytest.fixture
def owner(gateway: Server, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """Gives the store as the lab sees it, with its credentials in the environment."""
    for variable, value in gateway.environment.items():
        monkeypatch.setenv(variable, value)
    return open_store(URL)


def _sessions(server: Server, role: str = ROLE) -> RoleSessions:
    where = {name: server.options[name] for name in ("endpoint", "region")}
    return RoleSessions(URL, role=role, region="us-east-1", options=where)


def _as_far_as(credentials: wire.StoreCredentials) -> ObjectStore:
    return open_store(URL, credentials.options, lambda: credentials)


# ---------------------------------------------------------------- credentials


@pytest.mark.slow
def test_credentials_open_what_they_are_for_and_nothing_else(gateway: Server, owner: ObjectStore) -> None:
    mine, read, others = "checkpoints/a", "checkpoints/before", ("checkpoints/b", "checkpoints/ab", "code", "datasets")
    for folder in (mine, read, *others):
        owner.put(f"{folder}/x", b"of " + folder.encode())
    owner.put("code/mine", b"code")
    access = Access(writes=(mine,), reads=(read,), objects=("code/mine",))
    credentials = _sessions(gateway).grant(access, holder="job-1.1")
    store = _as_far_as(credentials)
    large = bytes(40 << 20)  # In parts.
    store.put(f"{mine}/y", large)
    assert store.get_range(f"{mine}/y", offset=0, size_bytes=9) == large[:9]
    assert [store.put_if_absent(f"{mine}/once", b"1") for _ in range(2)] == [True, False]
    store.delete(f"{mine}/y")
    assert [seen.key for seen in store.list(mine)] == [f"{mine}/once", f"{mine}/x"]
    assert [seen.key for seen in store.list(read)] == [f"{read}/x"]
    assert (store.get(f"{read}/x"), store.get("code/mine")) == (b"of checkpoints/before", b"code")
    assert (store.size(f"{mine}/nothing"), store.size(f"{mine}/x")) == (None, 16)
    with pytest.raises(NotFound):
        store.get(f"{mine}/nothing")

    tries: list[Callable[[], object]] = [
        *(lambda folder=folder: store.get(f"{folder}/x") for folder in others),
        *(lambda folder=folder: store.size(f"{folder}/x") for folder in others),
        *(lambda folder=folder: store.put(f"{folder}/new", b"") for folder in (read, *others)),
        *(lambda folder=folder: store.delete(f"{folder}/x") for folder in (read, *others)),
        *(lambda folder=folder: store.list(folder) for folder in ("", "checkpoints", *others)),
        lambda: store.put("code/mine", b"other code"),
    ]
    for number, tried in enumerate(tries):
        try:
            came = tried()
        except NotAllowed:
            continue
        raise AssertionError(f"try {number} came to {came!r}")
    whole = S3Store(
        "lab",
        endpoint=gateway.options["endpoint"],
        region="us-east-1",
        access_key_id=credentials.access_key_id,
        secret_access_key=credentials.secret_access_key,
        session_token=credentials.session_token,
        client_options={"allow_http": True},
    )
    for target in ("objects/checkpoints/a/copy", "objects/checkpoints/b/copy"):  # Neither to oneself, nor to others.
        with pytest.raises(PermissionDeniedError):
            obstore.copy(whole, "objects/checkpoints/b/x", target)
    assert owner.get("code/mine") == b"code"
    assert owner.get(f"{mine}/once") == b"1"


@pytest.mark.slow
def test_a_store_that_does_not_limit_sessions_is_found_out(
    gateway: Server, owner: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_grants(URL, _sessions(gateway))
    with pytest.raises(NotAllowed, match="role"):
        check_grants(URL, _sessions(gateway, role="arn:aws:iam:::role/nobodys"))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(NotAllowed, match="role"):
        check_grants(URL, _sessions(gateway))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(Unavailable, match="role"):
        check_grants(URL, _sessions(gateway))
    with moto(tmp_path) as open_to_all:  # It takes every credential for everything.
        for variable, value in open_to_all.environment.items():
            monkeypatch.setenv(variable, value)
        lab = Lab(tmp_path / "home")
        lab.home.write_config(Config(clusters=clusters(), objects=URL, objects_role="arn:aws:iam::123456789012:role/a"))
        try:
            with pytest.raises(NotAllowed, match="objects_role"):
                lab.up(port=0)
            assert lab.home.server() is None
        finally:
            lab.down()


@pytest.mark.parametrize(
    "given",
    [
        {"objects_role": ROLE},
        {"objects_role": ROLE, "objects": "gs://lab/objects"},
        {"objects_role": "agents", "objects": URL},
        {"objects_role": f"{ROLE} ", "objects": URL},
    ],
)
def test_a_role_without_a_store_that_knows_roles_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(InvalidSpec, match="objects_role"):
        Config(**given)  # type: ignore[arg-type]


# ---------------------------------------------------------------- a lab


@pytest.fixture
def lab(gateway: Server, owner: ObjectStore, python: str, tmp_path: Path) -> Iterator[Lab]:
    with tempfile.TemporaryDirectory(prefix="runs-", dir="/tmp") as runs:
        lab = Lab(tmp_path / "home")
        os.chmod(runs, 0o755)
        config = Config(clusters=clusters(), objects=URL, objects_role=ROLE, run_as=USERS, run_folder=f"{runs}/made")
        lab.home.write_config(config)
        lab.up(port=0)
        try:
            for team in USERS:
                lab.set_team(team)
            yield lab
        finally:
            for view in lab.ps():
                if not ended(view.state):
                    lab.stop(view.id)
            until(lambda: all(ended(view.state) for view in lab.ps()), "jobs to end", wait_s=40)
            lab.down()


def _program(python: str, program: str, *words: str, team: str, **fields: object) -> JobSpec:
    environment = {"PYTHONPATH": LIBRARIES, **fields.pop("environment", {})}  # type: ignore[dict-item]
    command = [python, "-c", program, *words]
    return job("job", command, on=["h100", "v5e"], team=team, environment=environment, **fields)  # type: ignore[arg-type]


def _well(lab: Lab, view: JobView) -> JobView:
    over = lab.wait(view.id, timeout_s=90)
    assert over.state is JobState.SUCCEEDED, (over.reason, b"".join(lab.logs(view.id)).decode())
    return over


def _sources(lab: Lab, job_id: str) -> list[object]:
    return [event.detail["source"] for event in lab.events(job_id) if event.kind == GenerationResumedEvent.kind]


def _of_agent(lab: Lab, job_id: str) -> tuple[AgentOrder, int]:
    """Returns the order and the process of an agent of a job."""
    attempt = lab.status(job_id).attempts[-1].id
    (first, *_) = [path for path in lab.home.path.glob("engines/*/*/node-0/order.json") if attempt in path.read_text()]
    (pid,) = [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if b"agent" in path.read_bytes().split(b"\0") and (path.parent / "cwd").readlink() == first.parent
    ]
    return codec.decode(AgentOrder, first.read_bytes()), pid


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_job_reads_no_checkpoint_of_another_team_and_goes_on_from_its_own(
    gateway: Server,
    owner: ObjectStore,
    lab: Lab,
    python: str,
    tmp_path: Path,
) -> None:
    with tempfile.TemporaryDirectory(prefix="gate-", dir="/tmp") as gate:
        os.chmod(gate, 0o1777)
        theirs = _well(lab, lab.run(_program(python, COUNTER, "14", "7", gate, team="vision", replicas=2)))
        manifest = f"checkpoints/{theirs.id}/manifests/{14:012d}"
        assert owner.size(manifest)

        # A job of another team saves, and has an agent that holds credentials.
        mine = lab.run(_program(python, COUNTER, "30", "7", gate, "20", team="arms", replicas=2))
        halted(lab, mine.id, Path(gate), 20)
        until(lambda: CheckpointDurableEvent.kind in kinds(lab, mine.id), "a durable checkpoint")
        order, agent = _of_agent(lab, mine.id)
        assert b"AWS_" not in Path(f"/proc/{agent}/environ").read_bytes()

        # What a program of that team finds by itself.
        server = lab.home.server()
        assert server is not None
        paths = [f"/proc/{agent}/environ", f"/proc/{server.pid}/environ", f"{order.work_dir}/order.json"]
        spying = _program(python, SPY, gateway.options["endpoint"], *paths, team="arms", environment={"KEYS": manifest})
        told = json.loads(b"".join(lab.logs(_well(lab, lab.run(spying)).id)))
        assert told == {"environ": [], "found": [], "readable": [], "without": [403], "list": [403, 403]}

        # What it could do with all that its agent has.
        asked = httpx.post(
            f"{server.url}/v1/agents/store-credentials",
            content=codec.encode(wire.CredentialsWanted(allocation=order.allocation)),
            headers={"Authorization": f"Bearer {order.token}", "Content-Type": "application/json"},
        )
        credentials = codec.decode(wire.StoreCredentials, asked.content)
        assert 0 < credentials.lasts_s <= 3_600
        stolen = _as_far_as(credentials)
        assert stolen.list(f"checkpoints/{mine.id}/manifests")
        for tried in (
            lambda: stolen.get(manifest),
            lambda: stolen.list(f"checkpoints/{theirs.id}"),
            lambda: stolen.list("checkpoints"),
            lambda: stolen.list(""),
            lambda: stolen.put(f"checkpoints/{theirs.id}/manifests/{15:012d}", b"forged"),
        ):
            with pytest.raises(NotAllowed):
                tried()
        for word in (credentials.secret_access_key, credentials.session_token, SECRET):
            holding = [
                path for path in lab.home.path.rglob("*") if path.is_file() and word.encode() in path.read_bytes()
            ]
            assert holding == []

        # It lost its agents, and its memory with them: what is durable is there, and for its own team's next job too.
        kill(agent)
        (Path(gate) / "go-20").touch()
        over = _well(lab, mine)
        assert len(over.attempts) == 2
        assert _sources(lab, mine.id)[-1] == "store"
        following = _program(python, COUNTER, "44", "7", gate, team="arms", replicas=2)
        begun = lab.run(following, begins_from=f"{mine.id}@28")
        _well(lab, begun)
        assert _sources(lab, begun.id) == [f"{mine.id}@28"]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_job_reads_the_views_that_it_names_and_nothing_else(
    owner: ObjectStore, lab: Lab, python: str, tmp_path: Path
) -> None:
    made = []
    for number, name in enumerate(("mine", "theirs")):
        version = version_of(owner, record_many(tmp_path / name, 4, first_seed=10 * number), name)
        recipe = ViewRecipe(holdout_fraction=0.25)
        made.append((version, build_view(owner, version, recipe, scratch_dir=tmp_path / "scratch")))
    (version, mine), (_, theirs) = made
    owner.put("checkpoints/theirs/x", b"")
    keys = ["checkpoints/theirs/x", *(entry.key for entry in owner.list("catalog"))][:4]
    with tempfile.TemporaryDirectory(prefix="cache-", dir="/tmp") as cache:
        os.chmod(cache, 0o1777)
        words = [URL, mine.id, theirs.id, f"{cache}/views", json.dumps(keys)]
        reading = _program(python, READER, *words, team="arms", views=[mine.id], inputs=[version.name])
        told = json.loads(b"".join(lab.logs(_well(lab, lab.run(reading)).id)))
    view = open_view(owner, mine.id, tmp_path / "cache", "train")
    assert (told["environ"], told["rows"]) == ([], view.rows)
    assert told["first"] == view.take("action", view.episode_starts[:1]).tolist()
    without = told["tried"].pop("without")
    assert without != repr(owner.get(f"views/{mine.id}.json"))
    assert set(told["tried"].values()) == {"NotAllowed"}, told["tried"]
    assert len(told["tried"]) > 10


# ---------------------------------------------------------------- renewal


@pytest.fixture
def _a_view(owner: ObjectStore) -> Iterator[None]:
    """Something where views are, which is none: whoever lists them meanwhile would not read it."""
    owner.put("views/a.json", b"a view")
    yield
    owner.delete("views/a.json")


@pytest.mark.usefixtures("_a_view")
@pytest.mark.slow
@pytest.mark.parametrize("view", [["a"], []], ids=["a view", "what its spec names"])
def test_a_rank_goes_on_reading_when_the_credentials_it_began_with_end(
    gateway: Server, make_rig: Callable[..., Rig], view: list[str]
) -> None:
    sessions = _sessions(gateway)

    def given(access: Access) -> wire.StoreCredentials:
        return replace(sessions.grant(access, holder="job-1.1"), lasts_s=1.0)

    rig = make_rig(
        command=(sys.executable, "-c", POLLER, URL, *view),
        agents=1,
        objects_url=URL,
        environment={name: "" for name in os.environ if name.startswith("AWS_")},
        credentials=lambda: given(Access(writes=(f"checkpoints/{JOB}",))),
        view_credentials=lambda view: given(Access(objects=(f"views/{view or 'a'}.json",))),
    )

    def read() -> int:
        return max((beat.step for beat in rig.heartbeats), default=-1)

    rig.wait(lambda: read() > 0, "a rank to read the view")
    role = Role(folder=gateway.folder)
    role.remove()
    role.make()
    ended_at = read()
    rig.wait(lambda: read() > ended_at + 50, "a rank to read with new credentials")


@pytest.mark.soak
def test_agents_go_on_saving_when_the_credentials_they_began_with_end(
    gateway: Server,
    owner: ObjectStore,
    make_rig: Callable[..., Rig],
) -> None:
    sessions, access = _sessions(gateway), Access(writes=(f"checkpoints/{JOB}",))
    rig = make_rig(
        steps=4_000,
        objects_url=URL,
        environment={name: "" for name in os.environ if name.startswith("AWS_")},
        credentials=lambda: replace(sessions.grant(access, holder="job-1.1"), lasts_s=1.0),
    )

    def durable() -> int:
        return max((int(detail["step"]) for detail in rig.of_kind(CheckpointDurableEvent.kind)), default=-1)

    rig.wait(lambda: durable() > 0, "a durable checkpoint")
    role = Role(folder=gateway.folder)
    role.remove()  # Every session of it ends at once, as if its time were over.
    role.make()
    ended_at = max(durable(), rig.heartbeats[-1].step)
    rig.wait(lambda: durable() > ended_at, "a checkpoint saved with new credentials")
    assert open_store(URL).list(f"checkpoints/{JOB}/manifests")
