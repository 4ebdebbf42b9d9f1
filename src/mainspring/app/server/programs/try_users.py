"""Tries out whether agents on this machine can run ranks as users: `python -m mainspring try-users FOLDER USER ...`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from mainspring.node.process.users import troubles


def main() -> None:
    """Prints a JSON list of who cannot be, why, and what to do about it."""
    folder, *names = sys.argv[1:]
    found = troubles(names, Path(folder)).items()
    print(
        json.dumps([{"user": name, "found": error.got or str(error), "fix": error.next_step} for name, error in found])
    )


if __name__ == "__main__":
    main()
