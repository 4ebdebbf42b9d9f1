from __future__ import annotations

import pytest

from mainspring.data.video.keys import begins_closed, begins_group


@pytest.mark.parametrize("codec", ["h264", "hevc"])
def test_packet_of_zeros_holds_no_unit_and_begins_nothing(codec: str) -> None:
    assert begins_group(codec, bytes(12), length_bytes=4) is False
    assert begins_closed(codec, bytes(12), length_bytes=4) is False
