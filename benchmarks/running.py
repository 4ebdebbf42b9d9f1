"""What benchmarks of Kubernetes begin and end with."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path


def run(name: str, missing: str, measure: Callable[[Path], Mapping[str, float]]) -> None:
    """Measures in a folder of its own, and prints the figures as the last line; the folder goes whatever happens.

    Args:
        missing: Why that cannot be done here, "" where it can.
    """
    if missing:
        sys.exit(missing)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    try:
        figures = measure(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))
