from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest
from tests.data.making import version_of, write_lerobot_v2

from mainspring.data import episode_rows
from mainspring.data.show import contact_sheet
from mainspring.objects import open_store

pytest.importorskip("matplotlib", reason="Matplotlib is not installed")


@pytest.mark.slow
def test_contact_sheet_shows_pictures_in_the_order_they_were_taken(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    version = version_of(store, write_lerobot_v2(tmp_path / "raw", [40], video=True), "stack")
    (row,) = episode_rows(store, version)
    sheet = tmp_path / "sheet.png"
    contact_sheet(store, row, version.features, sheet, cache_dir=tmp_path / "cache")
    with av.open(str(sheet)) as container:
        picture = next(container.decode(video=0)).to_ndarray(format="rgb24")
    assert picture.shape[1] == 1600
    line = picture[60 : picture.shape[0] // 4].astype(int)
    grays = [np.median(line[:, 100 + 200 * at]) for at in range(8)]
    assert grays == sorted(grays)
    assert grays[-1] - grays[0] > 100
