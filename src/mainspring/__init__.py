"""Mainspring: the operating system of a lab that trains robot foundation models.

Names are loaded when they are first used, so that a rank that only joins its session imports nothing else. A name that
is none of them is a verb: that of the lab in the default home folder.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mainspring.lazy import names_of

if TYPE_CHECKING:
    from mainspring.app.sdk.lab import Lab, job
    from mainspring.domain.errors import MainspringError
    from mainspring.session import Session, join

_NOT_VERBS = ("call", "client")  # What verbs are made of.
_find, __dir__ = names_of(__name__)


def __getattr__(name: str) -> Any:
    """Returns a public name from the room that holds it, or a verb of the lab in the default home folder."""
    if name in __dir__():
        return _find(name)
    room = Path(__file__).with_name(name).is_dir()
    verb = None if room or name.startswith("_") or name in _NOT_VERBS else getattr(_find("Lab")(), name, None)
    if not callable(verb):
        raise AttributeError(f"module 'mainspring' has no attribute {name!r}")
    return verb
