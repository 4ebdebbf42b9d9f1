"""What all tests share: properties are never timed, so that a busy machine fails none of them.

They draw the same cases each time in `make test`, so that what passed passes again; `make soak` looks for new ones.
"""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("house", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, derandomize=False)
settings.load_profile("house")
