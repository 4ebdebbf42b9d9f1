"""`ms checkpoint` as a user runs it, on an object store, without a server."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from mainspring.app.cli.checkpoint import app
from mainspring.app.sdk.lab import Lab, job
from mainspring.app.sdk.policies.services import replica_spec
from mainspring.checkpoint import load
from mainspring.checkpoint.safetensors import SafetensorsSource
from mainspring.domain.errors import Conflict, DamagedData, InvalidInput, NotFound
from mainspring.domain.ids import JobId
from mainspring.objects import ObjectStore
from tests.checkpoint.foreign import JOB, assert_same, save, some_arrays


@dataclass(frozen=True)
class Shelf:
    lab: Lab
    store: ObjectStore

    def run(self, *words: str) -> Result:
        """Runs `ms checkpoint`; our own errors come out as `ms` gets them."""
        done = CliRunner(env={"COLUMNS": "160"}).invoke(app, words, obj=self.lab)
        if done.exception and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done

    def json(self, *words: str) -> Any:
        return json.loads(self.run(*words, "--json").stdout, parse_constant=pytest.fail)


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    lab = Lab(tmp_path / "home")
    return Shelf(lab, lab.objects())


@pytest.fixture
def saved(shelf: Shelf) -> Shelf:
    for step in (10, 20):
        save(shelf.store, some_arrays(step), step=step)
    return shelf


def damage(store: ObjectStore, step: int) -> None:
    key = next(seen.key for seen in store.list(f"checkpoints/{JOB}/shares/{step:012d}") if seen.key.endswith("000"))
    data = bytearray(store.get(key))
    data[100] ^= 1
    store.put(key, bytes(data))


def test_ls_of_nothing_says_how_to_get_some(shelf: Shelf) -> None:
    assert "ms checkpoint import" in shelf.run("ls").stdout
    assert shelf.json("ls") == []


def test_ls_lists_newest_steps_of_all_and_every_step_of_one(saved: Shelf) -> None:
    save(saved.store, some_arrays(), job=JobId("job-2"), step=3)
    assert [(row["job"], row["step"]) for row in saved.json("ls")] == [("job-1", 20), ("job-2", 3)]
    rows = saved.json("ls", "job-1")
    assert [row["step"] for row in rows] == [20, 10]
    assert rows[0]["ranks"] == 2
    assert "attempt-1" in saved.run("ls", "job-1").stdout


def test_ls_shows_a_damaged_manifest_beside_the_sound_ones(saved: Shelf) -> None:
    saved.store.put("checkpoints/job-1/manifests/000000000020", b"{}")
    assert [bool(row["damage"]) for row in saved.json("ls", "job-1")] == [True, False]
    assert "could not read a manifest" in saved.run("ls", "job-1").stdout


def test_show_tells_parts_types_lineage_state_and_tree(saved: Shelf) -> None:
    text = saved.run("show", "job-1@10").stdout
    for word in ("weights", "optimizer", "bfloat16", "blake3:", "pick@3", "state cursor", "kernel  float32 [24, 16]"):
        assert word in text
    plain = saved.json("show", "job-1")
    assert plain["checkpoint"]["step"] == 20
    assert plain["parts"]["optimizer"]["arrays"] == 3
    assert plain["lineage"]["inputs"] == ["pick@3"]
    assert {array["path"] for array in plain["arrays"]} == set(some_arrays())


@pytest.mark.slow
def test_show_of_thousands_of_arrays_fits_a_screen_and_json_has_all(shelf: Shelf) -> None:
    arrays = {f"params/block{i}/w{i % 7}": np.zeros(1, dtype=np.int8) for i in range(3_000)}
    arrays |= {f"x{i}": np.zeros(1, dtype=np.int8) for i in range(500)}
    save(shelf.store, arrays, state={f"fact{i}": "x" * 1_000 for i in range(100)})
    text = shelf.run("show", "job-1").stdout
    assert len(text.splitlines()) < 150
    assert "3,000 arrays" in text
    assert "and 461 more" in text
    assert len(shelf.json("show", "job-1")["arrays"]) == 3_500


def test_verify_reads_every_step_and_fails_on_damage(saved: Shelf) -> None:
    assert saved.run("verify", "job-1").exit_code == 0
    damage(saved.store, 10)
    done = saved.run("verify", "job-1", "--json")
    assert done.exit_code == 1
    assert [(each["step"], bool(each["damage"])) for each in json.loads(done.stdout)] == [(20, False), (10, True)]
    assert "sound" in saved.run("verify", "job-1@20").stdout
    assert saved.run("verify", "job-1@20").exit_code == 0


def test_diff_of_equals_is_silent_and_of_others_lists_the_most_different_first(saved: Shelf) -> None:
    assert saved.run("diff", "job-1@10", "job-1@10").exit_code == 0
    done = saved.run("diff", "job-1@10", "job-1", "--limit", "3")
    assert done.exit_code == 1
    assert "params/dense/kernel" in saved.run("diff", "job-1@10", "job-1@20").stdout
    assert "more: --limit" in done.stdout
    assert len(done.stdout.splitlines()) < 12
    plain = saved.json("diff", "job-1@10", "job-1@20")
    assert plain["same"] + len(plain["differences"]) == len(some_arrays())
    kernel = next(each for each in plain["differences"] if each["path"] == "params/dense/kernel")
    a, b = (some_arrays(seed)["params/dense/kernel"].astype(np.float64) for seed in (10, 20))
    assert kernel["absolute"] == pytest.approx(np.abs(a - b).max())
    assert kernel["left_numbers"]["norm"] == pytest.approx(np.linalg.norm(a))


def test_export_and_import_of_safetensors_is_a_round_trip(saved: Shelf, tmp_path: Path) -> None:
    done = saved.run("export", "job-1@10", str(tmp_path / "out"), "--format", "safetensors")
    assert f"Wrote job-1@10 to {tmp_path / 'out'}: 14 arrays" in " ".join(done.stdout.split())
    plain = saved.json("import", str(tmp_path / "out"), "--job", "again")
    assert (plain["job"], plain["step"], plain["parent"]) == ("again", 10, "job-1@10")
    assert_same(load(saved.store, JobId("again")).arrays, some_arrays(10))
    assert saved.run("diff", "job-1@10", "again").exit_code == 0


@pytest.mark.slow
def test_export_and_import_of_orbax_is_a_round_trip(saved: Shelf, tmp_path: Path) -> None:
    saved.run("export", "job-1@10", str(tmp_path / "out"), "--format", "orbax")
    assert saved.json("import", str(tmp_path / "out"), "--job", "again", "--step", "0")["step"] == 0
    assert_same(load(saved.store, JobId("again")).arrays, some_arrays(10))
    assert saved.run("diff", "job-1@10", "again@0").exit_code == 0


def test_weights_alone_go_out_under_their_own_names_and_come_in_under_another(saved: Shelf, tmp_path: Path) -> None:
    words = ("export", "job-1", str(tmp_path / "out"), "--format", "safetensors", "--weights-only")
    plain = saved.json(*words, "--under", "params")
    assert plain["arrays"] == 7
    assert "dense/kernel" in {array.path for array in SafetensorsSource(tmp_path / "out").arrays}
    saved.run("import", str(tmp_path / "out"), "--job", "base", "--under", "model", "--step", "0")
    wanted = {path: each for path, each in some_arrays(20).items() if path.startswith("params/")}
    assert_same(
        {path.replace("model/", "params/"): each for path, each in load(saved.store, JobId("base")).arrays.items()},
        wanted,
    )


def test_a_damaged_checkpoint_is_not_exported(saved: Shelf, tmp_path: Path) -> None:
    damage(saved.store, 20)
    with pytest.raises(DamagedData):
        saved.run("export", "job-1", str(tmp_path / "out"), "--format", "safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_gc_tells_first_and_then_deletes_old_steps(saved: Shelf) -> None:
    dry = saved.json("gc", "job-1", "--keep", "1", "--dry-run")
    assert dry["steps"] == [10]
    assert len(saved.json("ls", "job-1")) == 2
    assert "whole steps: 10" in saved.run("gc", "job-1", "--keep", "1").stdout
    assert [row["step"] for row in saved.json("ls", "job-1")] == [20]
    assert saved.run("verify", "job-1").exit_code == 0


def test_a_wrong_name_or_step_gets_the_nearest(saved: Shelf, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="did you mean 'job-1'"):
        saved.run("show", "jobb-1")
    with pytest.raises(NotFound, match="one of 20, 10"):
        saved.run("show", "job-1@15")
    for wrong in ("job-1@", "job-1@x", "job-1@-1", "job-1@" + "9" * 30, "../job-1", "JOB"):
        with pytest.raises(InvalidInput):
            saved.run("show", wrong)
    with pytest.raises(NotFound):
        saved.run("gc", "")


def test_another_store_is_looked_at_by_its_url(saved: Shelf, tmp_path: Path) -> None:
    elsewhere = Shelf(Lab(tmp_path / "other"), saved.store)
    assert elsewhere.json("ls") == []
    url = f"file://{saved.lab.home.path / 'objects'}"
    assert [row["step"] for row in elsewhere.json("ls", "job-1", "--objects", url)] == [20, 10]
    with pytest.raises(InvalidInput):
        elsewhere.run("ls", "--objects", "ftp://x")


def test_import_of_what_is_no_checkpoint_leaves_the_store_as_it_was(saved: Shelf, tmp_path: Path) -> None:
    before = saved.store.list("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "x.safetensors").write_bytes(b"\xff" * 64)
    for path, error in {"folder": InvalidInput, "x.safetensors": DamagedData, "none": NotFound}.items():
        with pytest.raises(error):
            saved.run("import", str(tmp_path / path), "--job", "x")
    assert saved.store.list("") == before


def test_import_over_a_step_that_is_there_is_refused(saved: Shelf, tmp_path: Path) -> None:
    saved.run("export", "job-1", str(tmp_path / "out"), "--format", "safetensors")
    saved.run("import", str(tmp_path / "out"), "--job", "base")
    with pytest.raises(Conflict, match="base@20"):
        saved.run("import", str(tmp_path / "out"), "--job", "base")
    with pytest.raises(Conflict, match="something there"):
        saved.run("export", "base", str(tmp_path / "out"), "--format", "safetensors")


@pytest.mark.slow
def test_a_job_is_found_by_its_name_and_one_without_checkpoints_says_so(lab: Lab) -> None:
    shelf = Shelf(lab, lab.objects())
    view = lab.run(job("train", [sys.executable, "-c", "pass"], on=["h100"]))
    with pytest.raises(NotFound, match=r"saved none.*ms why train"):
        shelf.run("show", "train")
    save(shelf.store, some_arrays(), job=view.id, step=3)
    assert [(row["job"], row["step"]) for row in shelf.json("ls", "train")] == [(view.id, 3)]
    with pytest.raises(NotFound, match="did you mean 'train'"):
        shelf.run("ls", "trian")


@pytest.mark.slow
def test_an_import_that_would_hide_a_job_of_its_name_is_refused(lab: Lab, tmp_path: Path) -> None:
    shelf = Shelf(lab, lab.objects())
    view = lab.run(job("train", [sys.executable, "-c", "pass"], on=["h100"]))
    save(shelf.store, some_arrays(), job=view.id, step=3)
    shelf.run("export", "train", str(tmp_path / "out"), "--format", "safetensors")
    for taken in ("train", view.id):
        with pytest.raises(Conflict, match=f"the name of {view.id}"):
            shelf.run("import", str(tmp_path / "out"), "--job", taken)
    assert shelf.json("ls", "train")[0]["job"] == view.id


def test_specs_of_replicas_name_the_checkpoint_that_they_read(saved: Shelf) -> None:
    cases = (("job-1@10", (), "job-1@10"), ("job-1", (), "job-1@20"), ("job-1", ("--follow",), "job-1"))
    for source, words, reads in cases:
        assert replica_spec(saved.lab, source, words).reads == (reads,)
    served = replica_spec(saved.lab, "job-1", name="pick")
    assert replica_spec(saved.lab, "job-1@10", like=served).reads == ("job-1@10",)
    assert replica_spec(saved.lab, "mine:act", like=served).reads == ()
