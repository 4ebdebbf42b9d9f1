"""What all tests share: properties are never timed, so that a busy machine fails none of them."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("house", deadline=None)
settings.load_profile("house")
