"""The command line, `ms`: thin verbs over the SDK."""

import sys

# As where it is installed without its own command line, which brings click and pygments: a fifth of what `ms ps` takes.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
