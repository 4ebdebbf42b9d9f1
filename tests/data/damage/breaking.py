"""Damage as disks, cables and killed processes do it, drawn from a seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np

SECTOR = 512
WAYS = ("cut", "tail", "bit", "byte", "hole", "sector", "removed", "doubled", "moved")


def damaged(data: bytes, dice: np.random.Generator) -> tuple[str, bytes]:
    """Returns what was done to some bytes, and the bytes.

    Args:
        data: At least one byte.
        dice: Decides.
    """
    way = WAYS[int(dice.integers(len(WAYS)))]
    size = len(data)
    place = int(dice.integers(size))
    length = min(int(2 ** dice.uniform(0, 11)), size - place)
    changed = bytearray(data)
    match way:
        case "cut":
            del changed[max(place, 1) :]
        case "tail":
            place = max(size - length, 1)
            del changed[place:]
        case "bit":
            changed[place] ^= 1 << int(dice.integers(8))
        case "byte":
            changed[place] ^= int(dice.integers(1, 256))
        case "hole":
            changed[place : place + length] = bytes(length)
        case "sector":
            place = place // SECTOR * SECTOR
            length = min(SECTOR, size - place)
            changed[place : place + length] = bytes(length)
        case "removed":
            del changed[place : place + length]
        case "doubled":
            changed[place:place] = data[place : place + length]
        case _:
            start = int(dice.integers(size))
            length = min(length, size - start)
            changed[place : place + length] = data[start : start + length]
    return f"{way} at {place:,}, {length:,} bytes", bytes(changed)


def damage_one(folder: Path, dice: np.random.Generator) -> str:
    """Damages one file below a folder, large ones more often; returns what was done."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    sizes = np.array([path.stat().st_size for path in paths], float)
    path = paths[int(dice.choice(len(paths), p=0.7 * sizes / sizes.sum() + 0.3 / len(paths)))]
    before = path.read_bytes()
    what, after = damaged(before, dice)
    path.write_bytes(after)
    return f"{path.relative_to(folder)}: {what}" + ("" if before != after else ", which changes nothing")
