"""The Python SDK: `Lab` and its groups of verbs."""

from typing import TYPE_CHECKING

from mainspring.lazy import names_of

if TYPE_CHECKING:
    from mainspring.app.sdk.lab import Lab, job
else:
    __getattr__, __dir__ = names_of(__name__)
