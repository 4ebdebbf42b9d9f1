"""Names of a package that are loaded when they are first used, so that who needs one does not pay for all.

Such a package imports its names under `if TYPE_CHECKING`, where type checkers read them and nothing runs; under the
`else` it takes what is here, which looks up in those same lines where a name is:

    if TYPE_CHECKING:
        from mainspring.room.module import Name
    else:
        __getattr__, __dir__ = names_of(__name__)
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

_IMPORT = re.compile(r"^    from (mainspring[\w.]+) import (\([^)]+|.+)", re.MULTILINE)


def names_of(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns the `__getattr__` and `__dir__` of a package.

    Args:
        package: Its name. No name in it may be that of a module directly below it: the module would take its place.
    """
    module = sys.modules[package]
    imports = _IMPORT.findall(Path(str(module.__file__)).read_text(encoding="utf-8"))
    where = {name: source for source, names in imports for name in re.findall(r"\w+", names)}
    whole = [source for source, names in imports if names.strip() == "*"]  # Loaded in turn until one has the name.

    def find(name: str) -> Any:
        for source in [where[name]] if name in where else [] if name.startswith("__") else whole:
            found = import_module(source)
            if hasattr(found, name):
                value = getattr(found, name)
                setattr(module, name, value)
                return value
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find, lambda: sorted(where)
