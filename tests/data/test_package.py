from __future__ import annotations

import subprocess
import sys

import pytest

import mainspring.data


@pytest.mark.parametrize("name", dir(mainspring.data))
def test_public_name_is_found_where_it_is_said_to_be(name: str) -> None:
    assert getattr(mainspring.data, name) is not None


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError):
        getattr(mainspring.data, "nothing")  # noqa: B009


@pytest.mark.slow
def test_reading_batches_loads_neither_decoders_nor_sql() -> None:
    heavy = "{'av', 'duckdb', 'mcap'}"
    code = f"import sys; from mainspring.data import Loader, open_view; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "[]\n", done.stderr
