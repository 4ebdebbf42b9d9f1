"""The pictures of docs/page.md can be drawn again, and are those that the page shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mainspring.app.web.look import has_charts
from tests.app.web import tour
from tests.app.web.browsing import browser_missing


@pytest.mark.soak
@pytest.mark.skipif(bool(browser_missing()), reason=browser_missing())
@pytest.mark.skipif(not has_charts(), reason="what draws charts is not here: make install")
def test_tour_shows_the_pictures_that_are_drawn(tmp_path: Path) -> None:
    drawn = tour.draw(tmp_path)
    shown = re.findall(r"\(page/(\w+)\.png\)", (tour.FOLDER.parent / "page.md").read_text())
    assert sorted(drawn) == sorted(shown) == sorted(path.stem for path in tour.FOLDER.glob("*.png"))
    assert all((tmp_path / f"{name}.png").stat().st_size > 10_000 for name in drawn)
