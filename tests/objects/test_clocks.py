from __future__ import annotations

import time
from pathlib import Path

import pytest

from mainspring.domain.errors import Unavailable
from mainspring.objects import check_clock, open_store
from mainspring.testing.time_and_chance import FakeClock


def test_clock_that_agrees_with_the_store_is_content(tmp_path: Path) -> None:
    check_clock(open_store(str(tmp_path)), FakeClock(time.time() + 5.0))


@pytest.mark.parametrize(("apart_s", "wanted"), [(3_600.0, "3600 s ahead"), (-86_400.0, "s behind")])
def test_clock_that_is_far_from_the_stores_deletes_nothing(tmp_path: Path, apart_s: float, wanted: str) -> None:
    with pytest.raises(Unavailable, match=wanted):
        check_clock(open_store(str(tmp_path)), FakeClock(time.time() + apart_s))
