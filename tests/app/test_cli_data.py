"""`ms data` as people type it, in a home folder of its own, without a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mainspring.app.cli.main import app
from mainspring.app.sdk.lab import Lab
from mainspring.domain.errors import Conflict, InvalidInput, MainspringError, NotFound
from tests.data.making import record, record_many, write_lerobot_v2

pytestmark = pytest.mark.slow


class Shell:
    """Types `ms data` commands."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.lab = Lab(home)

    def data(self, *words: str, exits: int = 0) -> str:
        """Returns what a command prints, once it ends as it should."""
        done = CliRunner().invoke(app, ["--home", str(self.home), "data", *words], env={"COLUMNS": "200"})
        if isinstance(done.exception, MainspringError):
            raise done.exception
        assert done.exit_code == exits, done.output
        return done.stdout

    def json(self, *words: str, exits: int = 0) -> Any:
        """Returns what a command says to machines."""
        return json.loads(self.data(*words, "--json", exits=exits))


@pytest.fixture
def ms(tmp_path: Path) -> Shell:
    return Shell(tmp_path / "home")


def test_recordings_become_versions_that_are_chosen_compared_mixed_kept_and_let_go(ms: Shell, tmp_path: Path) -> None:
    assert "No datasets yet" in ms.data("ls")
    first, second = record_many(tmp_path / "a", 4), record(tmp_path / "b.mcap", seed=9)
    (tmp_path / "a" / "bad.mcap").write_bytes(b"noise" * 100)
    told = ms.data("ingest", str(first), str(second), "--dataset", "pick")
    assert "pick@1" in told
    assert "5 episodes" in told
    assert "bad.mcap" in told
    report = ms.json("ingest", str(first), str(second), "--dataset", "pick")
    assert (report["added"], report["known"], report["refused"]) == (0, 5, 1)  # What was refused is tried again.
    assert "pick" in ms.data("ls")

    shown = ms.json("show", "pick")
    episode = shown["episodes"][0]["id"]
    assert shown["version"]["episodes"] == 5
    assert episode[:12] in ms.data("show", "pick")
    assert ms.json("show", "pick", episode[:10])["id"] == episode
    assert "episode " + episode in ms.data("show", "pick", episode)

    chosen = ms.json("select", "pick", "--where", "frames > 25", "--as", "long")
    assert chosen["episodes"] < 5
    assert "frames > 25" in ms.data("log", "long")
    differs = ms.json("diff", "pick", "long", exits=1)
    assert len(differs["removed"]) == 5 - chosen["episodes"]
    assert "removed" in ms.data("diff", "pick", "long", exits=1)
    sides = ms.json("split", "pick", "--holdout", "0.4", "--as", "sides")
    assert sides["trained"] + sides["held_out"] == 5
    merged = ms.json("merge", "sides-train", "sides-holdout", "--as", "again")
    assert ms.json("diff", merged["dataset"], "pick")["kept"] == 5
    assert merged["id"] == shown["version"]["id"]
    assert "3.0" not in ms.data("mix", "both", "pick@1=3", "long=1")
    assert [part["share"] for part in ms.json("mix", "both")[0]["components"]] == [0.25, 0.75]

    lineage = ms.json("lineage", "pick")
    assert {"version", "mixture"} <= {link["kind"] for link in lineage["descendants"]}
    tree = ms.data("lineage", "again")
    assert "pick@1" in tree
    assert "sides-train@1" in tree

    ms.data("pin", "again", "--reason", "a baseline", "--by", "ada")
    assert "ada: a baseline" in ms.data("show", "again")
    with pytest.raises(Conflict, match="ada"):
        ms.data("rm", "again@1", "--reason", "none")
    ms.data("unpin", "again", "--by", "ada")
    assert "restore again@1" in ms.data("rm", "again@1", "--reason", "none")
    with pytest.raises(NotFound):
        ms.data("show", "again")
    assert "is back" in ms.data("restore", "again@1")
    ms.data("rm", "both", "--reason", "none")
    assert "No mixtures" in ms.data("mix")
    collected = ms.json("gc", "--dry-run")
    assert collected["dry_run"]
    assert collected["alive"]["objects"] > 0


def test_view_takes_every_field_of_its_recipe(ms: Shell, tmp_path: Path) -> None:
    dataset = write_lerobot_v2(tmp_path / "set", [20, 24, 22], video=True)
    ms.data("ingest", str(dataset), "--dataset", "stack")
    words = "view stack --image-size 32 --codec h264 --gop 5 --quality 30 --rate 10 --column state --column action"
    more = "--camera observation.images.front --holdout 0.4 --holdout-by task --shard-mib 1"
    manifest = ms.json(*words.split(), *more.split())
    wanted = {"image_size": 32, "codec": "h264", "gop": 5, "quality": 30, "rate_hz": 10.0, "holdout_group": "task"}
    wanted |= {"columns": ["action", "state"], "shard_bytes": 1 << 20, "holdout_fraction": 0.4}
    assert {name: manifest["recipe"][name] for name in wanted} == wanted
    assert "h264 in groups of 5" in ms.data(*words.split(), *more.split())
    ms.data("view", "stack", "--codec", "av1", exits=2)
    row = ms.json("show", "stack")["episodes"][0]
    sheet = tmp_path / "sheet.png"
    ms.data("show", "stack", row["id"], "--png", str(sheet))
    assert sheet.read_bytes().startswith(b"\x89PNG")


def test_what_a_gate_keeps_back_is_listed_and_published_with_a_name_and_a_reason(ms: Shell, tmp_path: Path) -> None:
    ms.data("ingest", str(record(tmp_path / "a.mcap", steps=1_200)), "--dataset", "pick")
    odd = record(tmp_path / "b.mcap", steps=1_200, seed=1, scale=40.0)
    with pytest.raises(Conflict, match="ms data publish"):
        ms.data("ingest", str(odd), "--dataset", "pick")
    (waiting,) = ms.json("candidates", "pick")
    assert waiting["findings"]
    assert "distribution" in ms.data("candidates", "pick")
    id = waiting["candidate"]["id"][:8]
    with pytest.raises(Conflict):
        ms.data("publish", "pick", id)
    with pytest.raises(InvalidInput, match="why"):
        ms.data("publish", "pick", id, "--waive", "distribution", "--by", "ada")
    words = ("--waive", "distribution", "--by", "ada", "--reason", "other units")
    assert "pick@2" in ms.data("publish", "pick", id, *words)
    assert ms.json("log", "pick")[0]["waivers"][0]["reason"] == "other units"
    assert ms.json("candidates", "pick") == []


def test_inspected_log_gives_a_recipe_by_which_it_is_taken_in(ms: Shell, tmp_path: Path) -> None:
    log, recipe = record(tmp_path / "a.mcap", steps=100), tmp_path / "recipe.yaml"
    shown = ms.data("inspect", str(log), "--write", str(recipe))
    assert "/observation/state" in shown
    assert "need no recipe" in shown
    with pytest.raises(Conflict, match="new name"):
        ms.data("inspect", str(log), "--write", str(recipe))
    assert ms.json("inspect", str(log))["recipe"]["columns"]["action"]
    assert ms.json("ingest", str(log), "--dataset", "pick", "--recipe", str(recipe))["episodes"] == 1


def test_inspected_set_gives_the_options_by_which_it_is_taken_in(ms: Shell, tmp_path: Path) -> None:
    folder = write_lerobot_v2(tmp_path / "set", [20, 20])
    info = json.loads((folder / "meta/info.json").read_text())
    del info["features"]["action"]
    (folder / "meta/info.json").write_text(json.dumps(info))
    assert "--action next:observation.state" in ms.data("inspect", str(folder))
    with pytest.raises(InvalidInput, match="needs none"):
        ms.data("inspect", str(folder), "--write", str(tmp_path / "recipe.yaml"))
    words = ms.json("inspect", str(folder))["words"]
    assert ms.json("ingest", str(folder), "--dataset", "pick", *words)["episodes"] == 2


def test_reasons_that_are_alike_are_one_line(ms: Shell, tmp_path: Path) -> None:
    folder = write_lerobot_v2(tmp_path / "set", [20, 20, 20, 20], video=True)
    for path in sorted(folder.rglob("*.mp4"))[1:]:
        path.unlink()
    shown = " ".join(ms.data("ingest", str(folder), "--dataset", "pick").split())
    assert "3 like episode_000001" in shown
    assert "--without-camera" in shown
    assert "of state only" in ms.data(
        "ingest", str(folder), "--dataset", "bare", "--without-camera", "observation.images.front"
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("show pikc", "did you mean 'pick'"),
        ("show pick@7", "pick@1"),
        ("show pick ffff", "ms data show pick@1"),
        ("select pick --where secs>1 --as x", "seconds"),
        ("mix m pick", "such as pick@3=2"),
        ("merge pick --as x", "two or more"),
        ("gc --grace 1s", "at least 3600"),
        ("publish pick nothing", "ms data candidates pick"),
        ("rm pick --reason none", "pick@1"),
        ("ingest nowhere --dataset pick", "nothing there"),
    ],
)
def test_wrong_words_are_answered_with_what_would_have_been_right(
    ms: Shell, tmp_path: Path, words: str, told: str
) -> None:
    ms.data("ingest", str(record(tmp_path / "a.mcap")), "--dataset", "pick")
    with pytest.raises(MainspringError) as caught:
        ms.data(*words.split())
    assert told in str(caught.value)


def test_ingest_of_nothing_sound_exits_with_one_and_freezes_nothing(ms: Shell, tmp_path: Path) -> None:
    (tmp_path / "bad.mcap").write_bytes(b"noise" * 100)
    assert "no recording was sound" in ms.data("ingest", str(tmp_path / "bad.mcap"), "--dataset", "pick", exits=1)
    assert ms.json("ls") == []


def test_watched_folder_gives_a_version_for_what_arrives(ms: Shell, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    record(folder / "a.mcap")
    rounds = ms.lab.data.watch(folder, "pick", settle_s=0.1, moved=tmp_path / "done")
    assert next(rounds).added == 1
    record(folder / "b.mcap", seed=1)
    assert next(rounds).version == ms.lab.data.version("pick@2")
    assert sorted(path.name for path in (tmp_path / "done").iterdir()) == ["a.mcap", "b.mcap"]


def test_watch_goes_on_when_a_gate_keeps_a_recording_back(ms: Shell, tmp_path: Path) -> None:
    folder, kept_back = tmp_path / "in", list[Conflict]()
    record(folder / "a.mcap", steps=1_200)
    rounds = ms.lab.data.watch(folder, "pick", settle_s=0.1, kept_back=kept_back.append)
    assert next(rounds).added == 1
    record(folder / "b.mcap", steps=1_200, seed=1, scale=40.0)
    assert next(rounds).added == 0
    record(folder / "c.mcap", steps=1_200, seed=2)
    assert next(rounds).added == 1
    assert [str(error) for error in kept_back if "ms data publish" in str(error)]
    assert len(ms.lab.data.candidates("pick")) == 1
