"""Ranks that read checkpoints and releases, as replicas and evaluations do: on a real S3 server with roles."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mainspring.app.sdk.lab import Lab
from mainspring.domain.answers.policies.releases import artifact_key
from mainspring.domain.life import JobState, ended
from mainspring.objects import ObjectStore
from tests.app.conftest import until
from tests.app.test_object_walls import URL, _program, gateway, lab, owner, python

__all__ = ["gateway", "lab", "owner", "python"]
WAIT_S = 180.0
RELEASE, OTHER = artifact_key("a" * 64), artifact_key("b" * 64)
# Tries all that it could be given credentials for, and tells what came of it.
TRIER = """
import json, os, sys
from mainspring.objects import open_store
from mainspring.session import join, open_named_store, open_view_store

url, tries = sys.argv[1], json.loads(sys.argv[2])
session = join()
stores = {"named": open_named_store(url), "no view": open_view_store(url, "")}

def came_of(store, verb, key):
    try:
        if verb == "list":
            return [seen.key for seen in store.list(key)]
        return {"get": lambda: store.get(key).decode(), "put": lambda: store.put(key, b"forged"),
                "delete": lambda: store.delete(key)}[verb]()
    except Exception as error:
        return type(error).__name__

told = {name: {f"{verb} {key}": came_of(store, verb, key) for verb, key in tries} for name, store in stores.items()}
told["without"] = came_of(open_store(url), "get", tries[0][1])
told["environ"] = sorted(name for name in os.environ if name.startswith("AWS_"))
print(json.dumps(told))
"""
TRIES = [
    ("get", "checkpoints/before/x"),
    ("list", "checkpoints/before"),
    ("get", RELEASE),
    ("get", "checkpoints/others/x"),
    ("list", "checkpoints/others"),
    ("list", "checkpoints"),
    ("list", "artifacts"),
    ("list", ""),
    ("put", "checkpoints/before/x"),
    ("put", "checkpoints/before/evaluations/8/forged/report.json"),
    ("put", "checkpoints/others/x"),
    ("put", RELEASE),
    ("delete", "checkpoints/before/x"),
    ("put", "checkpoints/before/evaluations/7/held-out/report.json"),
]


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_ranks_read_the_checkpoints_that_their_spec_names_and_write_none(
    owner: ObjectStore, lab: Lab, python: str
) -> None:
    for key in ("checkpoints/before/x", "checkpoints/others/x", RELEASE, OTHER):
        owner.put(key, b"of " + key.encode())
    plain = _program(python, TRIER, URL, json.dumps(TRIES), team="arms")
    specs = {
        "replica": replace(plain, reads=("before@7", f"release:{'a' * 64}")),
        "evaluation": replace(plain, evaluates="before@7"),
    }
    jobs = {name: lab.run(spec).id for name, spec in specs.items()}
    told = {}
    for name, id in jobs.items():
        over = lab.wait(id, timeout_s=WAIT_S)
        assert over.state is JobState.SUCCEEDED, (over.reason, b"".join(lab.logs(id)).decode())
        told[name] = json.loads(b"".join(lab.logs(id)))
        assert told[name].pop("environ") == []
        assert told[name].pop("without") != "of checkpoints/before/x"
    refused = {f"{verb} {key}": "NotAllowed" for verb, key in TRIES}
    reads = {"get checkpoints/before/x": "of checkpoints/before/x", "list checkpoints/before": ["checkpoints/before/x"]}
    replica = refused | reads | {f"get {RELEASE}": f"of {RELEASE}"}
    evaluation = refused | reads | {f"put {TRIES[-1][1]}": None}
    for name, wanted in (("replica", replica), ("evaluation", evaluation)):
        for way, seen in told[name].items():  # Nobody gets what the agent may write by naming no view.
            seen["list checkpoints/before"] = seen["list checkpoints/before"][-1:]  # Beside the other's report.
            assert seen == wanted, (name, way)
    assert owner.get("checkpoints/before/x") == b"of checkpoints/before/x"


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_policy_server_itself_reads_its_release_by_such_a_session(
    owner: ObjectStore, lab: Lab, python: str
) -> None:
    from tests.robots.serving.test_released import _released  # With JAX, which the others do without.
    from tests.robots.serving.trained_policies import trained_of

    source = f"release:{_released(owner, trained_of('plain'))}"
    spec = _program(python, "", team="arms")
    command = (python, "-m", "mainspring", "serve", source, "--port", "0", "--objects", URL, "--cache", "cache")
    spec = replace(spec, roles=(replace(spec.roles[0], command=command),), restarts_max=0, attempts_max=1)
    id = lab.run(replace(spec, reads=(source,))).id

    def said() -> str:
        return b"".join(lab.logs(id)).decode()

    until(lambda: "serving pick@3 on" in said() or ended(lab.status(id).state), "it to serve or end", wait_s=WAIT_S)
    assert "serving pick@3 on" in said(), said()
    lab.stop(id)
