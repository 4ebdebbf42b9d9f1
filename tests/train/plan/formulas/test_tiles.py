"""Bytes of arrays: on a TPU as its compiler lays out arguments, elsewhere as many as there are numbers."""

import pytest

from mainspring.train.plan.formulas.tiles import array_bytes, token_bytes


@pytest.mark.parametrize(
    ("shape", "itemsize", "size"),
    [
        ((14,), 4, 512),  # f32[14]{0:T(128)}
        ((2, 48), 4, 2 * 128 * 4),  # f32[2,48]{1,0:T(2,128)}
        ((2, 48, 4, 12), 4, 2 * 12 * 4 * 128 * 4),  # f32[2,48,4,12]{1,2,3,0:T(4,128)}
        ((8, 8, 3, 48), 4, 8 * 3 * 8 * 128 * 4),  # f32[8,8,3,48]{3,1,2,0:T(8,128)}
        ((256, 64), 4, 64 * 256 * 4),  # f32[256,64]{0,1:T(8,128)}
        ((12, 512, 256), 4, 12 * 512 * 256 * 4),
    ],
)
def test_array_on_a_tpu_fills_whole_tiles_of_its_best_two_axes(
    shape: tuple[int, ...], itemsize: int, size: int
) -> None:
    assert array_bytes(shape, itemsize, tiled=True) == size


def test_array_elsewhere_takes_its_numbers_alone() -> None:
    assert array_bytes((2, 48, 4, 12), 4, tiled=False) == 2 * 48 * 4 * 12 * 4


def test_tokens_on_a_tpu_fill_whole_lanes() -> None:
    assert token_bytes(10, 64, 2, tiled=True) == 10 * 128 * 2
    assert token_bytes(10, 64, 2, tiled=False) == 10 * 64 * 2
