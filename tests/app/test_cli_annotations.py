"""`ms data annotate` and what follows from it, as people type it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.domain.errors import InvalidInput, MainspringError, NotFound
from tests.app.test_cli_data import Shell
from tests.data.making import record_many

pytestmark = pytest.mark.slow


@pytest.fixture
def ms(tmp_path: Path) -> Shell:
    shell = Shell(tmp_path / "home")
    shell.data("ingest", str(record_many(tmp_path / "raw", 3)), "--dataset", "pick")
    return shell


def test_what_people_say_is_kept_shown_chosen_by_and_taken_back(ms: Shell) -> None:
    assert "Nothing was said of pick" in ms.data("annotations", "pick")
    episode = ms.json("show", "pick")["episodes"][0]["id"]
    stretch = ("--from", "0.2s", "--to", "0.5s")
    told = ms.data("annotate", "pick", episode[:8], "--success", "no", *stretch, "--label", "slipped", "--by", "ada")
    assert "1 kept, by ada" in told
    (row,) = ms.json("annotations", "pick", episode[:8])
    assert (row["episode"], row["author"], row["success"], row["begin_ns"]) == (episode, "ada", False, 200_000_000)
    assert "slipped, 0.200 s to 0.500 s" in ms.data("show", "pick", episode)
    where = "list_contains(annotation.labels, 'slipped') and not annotation.success"
    assert ms.json("select", "pick", "--where", where, "--as", "slipped")["episodes"] == 1
    assert ms.json("labels", "pick", "--label", "slipped")["columns"] == {"slipped": ["held"]}
    ms.data("annotate", "pick", episode, "--withdraw", "--label", "slipped")
    assert ms.json("annotations", "pick") == []


def test_files_of_annotations_are_taken_whole_or_not_at_all(ms: Shell, tmp_path: Path) -> None:
    table = tmp_path / "said.csv"
    good = '\ufeffSource,success,from,to,label\n000.mcap,yes,,,\n001.mcap,no,100ms,0.3s,"dropped, hard"\n'
    table.write_text(good.replace("100ms", "0.1s"))
    assert "2 kept" in ms.data("annotate", "pick", "--csv", str(table))
    assert [one["label"] for one in ms.json("annotations", "pick")].count("dropped, hard") == 1
    for text, word in (
        ("source,label\n000.mcap,x\nnone.mcap,x\n", "line 3"),
        ("source,label,to\n000.mcap,x,99s\n", "line 2"),
        ("source,label,to\n000.mcap,x,soon\n", "line 2"),
        ("source,label\n000.mcap\n", "line 2"),
        ("source,success\n000.mcap,maybe\n", "line 2"),
        ("source,lable\n000.mcap,x\n", "line 1"),
        ("source,label\n", "0 annotations"),
        ('source,label\n"000.mcap,x\n', "CSV"),
        ("", "empty"),
    ):
        table.write_text(text)
        with pytest.raises(MainspringError, match=word):
            ms.data("annotate", "pick", "--csv", str(table))
    assert len(ms.json("annotations", "pick")) == 2


def test_annotations_of_nothing_are_refused_and_told_why(ms: Shell) -> None:
    for words in ((), ("00", "--csv", "a.csv"), ("zz", "--label", "x")):
        with pytest.raises(InvalidInput):
            ms.data("annotate", "pick", *words)
    with pytest.raises(NotFound, match="none in pick@1"):
        ms.data("annotate", "pick", "0" * 20, "--label", "x")
