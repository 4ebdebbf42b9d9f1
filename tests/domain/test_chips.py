"""What is known of chips by their names alone."""

from __future__ import annotations

import pytest

from mainspring.domain.hardware.chips import named_memory_gib, published_memory_gib


@pytest.mark.parametrize(
    ("product", "memory_gib"),
    [
        ("NVIDIA-A100-SXM4-40GB", 40.0),
        ("NVIDIA-A100-SXM4-80GB", 80.0),
        ("nvidia_h100_80gb_hbm3", 80.0),
        ("nvidia-a100-80gb", 80.0),
        ("Tesla-V100-SXM2-32GB", 32.0),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", 5.0),
        ("nvidia_a100_3g.20gb", 20.0),
        ("1g.10gb", 10.0),
        ("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb.me", 10.0),
        ("nvidia-tesla-a100", None),
        ("AMD_Instinct_MI300X_OAM", None),
        ("NVIDIA-H200", None),
        ("NVIDIA-GH200-480GB", None),
        ("100gbe", None),
        ("0gb", None),
        ("", None),
    ],
)
def test_named_memory_of_a_product_is_the_size_in_its_name(product: str, memory_gib: float | None) -> None:
    assert named_memory_gib(product) == memory_gib


@pytest.mark.parametrize(
    ("chip", "memory_gib"),
    [
        ("h100", 80.0),
        ("h200", 141.0),
        ("a100", 40.0),
        ("a100-80gb", 80.0),
        ("l4", 22.5),
        ("mi300x", 192.0),
        ("v5p", 95.0),
        ("cpu", 0.0),
        ("gpu", None),
        ("any", None),
        ("gaudi", None),
    ],
)
def test_published_memory_of_a_chip_is_its_names_own_size_else_the_least_that_is_sold(
    chip: str, memory_gib: float | None
) -> None:
    assert published_memory_gib(chip) == memory_gib
