"""What ranks wrote, said once more by an agent, and read again out of its container's log."""

from __future__ import annotations

import io
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from mainspring.app.server.echo import Echo
from mainspring.domain.fleet import LogChunk
from mainspring.engines.kubernetes.jobs.output import chunk, pieces
from tests.app.conftest import until


def said(folder: Path, text: bytes, rank: int = 3) -> bytes:
    """What an agent says whose rank has written a text."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"rank-{rank}.log").write_bytes(text)
    out = io.BytesIO()
    Echo(folder, out).close()
    return out.getvalue()


@given(text=st.binary(max_size=300), since=st.integers(0, 310), limit=st.integers(1, 310))
def test_log_of_a_container_gives_what_its_rank_wrote(
    tmp_path_factory: object, text: bytes, since: int, limit: int
) -> None:
    folder: Path = tmp_path_factory.mktemp("reports")  # type: ignore[attr-defined]
    found = chunk(pieces(said(folder, text), 3), since=since, limit=limit)
    if not text:
        assert found is None
        return
    begin = since if since <= len(text) else 0
    data = text[begin : begin + limit]
    assert found == LogChunk(data=data, next_offset=begin + len(data))


def test_ranks_in_one_log_are_told_apart_and_an_agents_own_words_are_nobodys(tmp_path: Path) -> None:
    text = said(tmp_path / "a", b"one\ntwo\n", 3) + b"Traceback: an agent's\n" + said(tmp_path / "b", b"other", 30)
    assert [one.data for one in pieces(text, 3)] == [b"one\n", b"two\n"]
    assert [one.data for one in pieces(text, 30)] == [b"other"]
    assert chunk(pieces(text, 4), since=0, limit=10) is None


def test_output_that_the_kubelet_keeps_no_more_is_passed_over(tmp_path: Path) -> None:
    lines = said(tmp_path, b"".join(b"line %03d\n" % number for number in range(100))).splitlines(keepends=True)
    kept = b"".join(lines[50:])
    found = chunk(pieces(kept, 3), since=0, limit=9)
    assert found == LogChunk(data=b"line 050\n", next_offset=459)


def test_line_that_grows_is_said_in_parts_that_fit_together(tmp_path: Path) -> None:
    log, out = tmp_path / "rank-0.log", io.BytesIO()
    log.write_bytes(b"10 %")
    echo = Echo(tmp_path, out)
    until(lambda: b"10 %" in out.getvalue(), "the beginning of a line to be said")
    with log.open("ab") as file:
        file.write(b" 20 %\ndone\n")
    echo.close()
    assert out.getvalue() == b"0@0~10 %\n0@4  20 %\n0@10 done\n"
    assert b"".join(one.data for one in pieces(out.getvalue(), 0)) == b"10 % 20 %\ndone\n"
