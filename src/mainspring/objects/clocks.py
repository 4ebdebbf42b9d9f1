"""Clock skew between a machine and its object store: ages of objects are differences between the two."""

from __future__ import annotations

from mainspring.domain.errors import Unavailable
from mainspring.domain.ports import Clock
from mainspring.objects.port import ObjectStore

GAP_S_MAX = 60.0  # NTP keeps machines within a second; a minute is a clock that somebody set, or that nobody sets.
_FOLDER, _KEY = "clocks", "clocks/asked.json"


def check_clock(store: ObjectStore, clock: Clock) -> None:
    """Checks that what is stored now is new by this machine's clock, before old objects are deleted by it.

    Args:
        store: Told by the time it gives an object that is stored now.
        clock: This machine's.

    Raises:
        Unavailable: They are more than `GAP_S_MAX` apart.
    """
    now_s = clock.now_s()
    store.put(_KEY, b"{}")
    seen = [entry.modified_s for entry in store.list(_FOLDER) if entry.key == _KEY]
    gap_s = now_s - seen[0] if seen else 0.0  # Gone: another machine asked in between, and was content.
    if abs(gap_s) > GAP_S_MAX:
        raise Unavailable(
            "delete what is old",
            got=f"a clock {abs(gap_s):.0f} s {'ahead of' if gap_s > 0 else 'behind'} the object store's",
            wanted=f"at most {GAP_S_MAX:.0f} s between them",
            next_step="set this machine's clock",
        )
