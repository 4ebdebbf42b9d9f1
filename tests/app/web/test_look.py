"""Tables and racks as they are drawn: whatever is in them is text."""

from __future__ import annotations

import re

from mainspring.app.web import tables
from mainspring.app.web.look import table_body
from mainspring.app.web.tables import Cell, Grid, Heading
from mainspring.app.web.views.fleet import _rack
from mainspring.domain.answers import RackView

HOSTILE = "<img src=x onerror=alert(1)>\"'&\x1b[31m\u202e"
SAID = "&lt;img src=x onerror=alert(1)&gt;&#34;&#39;&amp;"


def body(*cells: Cell, **heading: bool) -> str:
    headings = tuple(Heading(key=f"c{number}", title="", **heading) for number in range(len(cells)))
    return str(table_body(Grid(name="g", title="", headings=headings, rows=[cells])))


def test_every_part_of_a_cell_is_text() -> None:
    hostile = Cell(text=HOSTILE, value=HOSTILE, link=HOSTILE, tone=HOSTILE, note=HOSTILE)
    drawn = body(hostile, Cell(text=HOSTILE * 10), tables.percent(0.25))
    assert "<img" not in drawn
    assert not re.search("[\x1b\u202e]", drawn)
    assert f'href="{SAID}"' in drawn
    assert f'data-value="{SAID}"' in drawn
    assert f"<small>{SAID}</small>" in drawn
    assert f't-{SAID.replace(" ", "-")}"' in drawn


def test_cells_are_drawn_by_what_they_tell() -> None:
    assert body(tables.text("well")) == '<tr><td class="">well</td></tr>\n'
    number = body(tables.number(1_234.0, ",.0f"), right=True, spare=True)
    assert number == '<tr><td class="right spare" data-value="1234.0">1,234</td></tr>\n'
    assert '<span class="badge t-running">running</span>' in body(tables.state("running"))
    assert '<a href="/ui/jobs/job-1">name</a>' in body(tables.job_link("job-1", "name"))
    assert 'class="part" width="25.0"' in body(tables.percent(0.25))
    assert '<time datetime="1970-01-01T00:00:10Z"' in body(tables.moment(10.0))
    assert 'class="wide "' in body(tables.text("x"), wide=True)
    long = "long " * 40
    assert f'<span class="long" title="{long}">{long}</span>' in body(tables.text(long))
    assert "<small>estimate</small>" in body(tables.expected(10.0, exact=False))


def test_rack_is_drawn_node_by_node_and_its_name_is_text() -> None:
    drawn = str(_rack("east", RackView(block="b", rack=HOSTILE, uses="ffd")))
    assert "<img" not in drawn
    assert not re.search("[\x1b\u202e]", drawn)
    assert drawn.count("<path") == 2
    assert 'class="n-full" d="M0 0h7v7h-7zM8 0h7v7h-7z"' in drawn
    assert 'class="n-down" d="M16 0h7v7h-7z"' in drawn
    assert f'title="{SAID}: ' in drawn
