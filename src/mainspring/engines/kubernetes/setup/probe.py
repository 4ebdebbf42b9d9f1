"""Probe of an image: the program of the pod that `check` runs. Its text travels inside that pod.

Nothing of Mainspring is imported before it is looked for: this runs under whatever Python the image has.
Arguments: the controller's URL, "" for none; the file to answer in; and what is mounted, "r" or "w" before each path.
"""

from __future__ import annotations

import json
import os
import sys
import time
from email.utils import parsedate_to_datetime
from importlib import import_module
from importlib.metadata import version

CALL_S = 10.0  # As long as an agent waits for the controller.


def agent() -> dict[str, object]:
    """Returns which Mainspring is here, and why an agent could not start."""
    try:
        found = version("mainspring")
    except Exception as error:  # noqa: BLE001  (whatever it is, it is what the operator must know)
        return {"version": "", "agent_error": f"{type(error).__name__}: {error}"}
    try:
        import_module(import_module("mainspring.__main__").PROGRAMS["agent"])
    except Exception as error:  # noqa: BLE001  (as above)
        return {"version": found, "agent_error": f"{type(error).__name__}: {error}"}
    return {"version": found, "agent_error": ""}


def server(url: str) -> dict[str, object]:
    """Returns how the controller answers, asked as an agent asks it.

    Args:
        url: Where; "" to ask nobody.
    """
    said: dict[str, object] = {"server_status": 0, "server_error": "", "server_ahead_s": None}
    if not url:
        return said
    try:
        import httpx

        from mainspring.domain.wire.trust import CERTIFICATE_VARIABLE, trust

        vouched = trust(url, os.environ.get(CERTIFICATE_VARIABLE, ""))  # noqa: TID251  (as an agent is told it)
        answer = httpx.get(f"{url}/v1/health", timeout=CALL_S, trust_env=False, verify=vouched)
        said["server_status"] = answer.status_code
        if "date" in answer.headers:  # Whole seconds, cut off: half of one is added back.
            at_s = parsedate_to_datetime(answer.headers["date"]).timestamp() + 0.5
            said["server_ahead_s"] = at_s - time.time()  # noqa: TID251  (the clock that is being looked at)
    except Exception as error:  # noqa: BLE001  (as above)
        said["server_error"] = f"{type(error).__name__}: {error}"
    return said


def closed(places: list[str]) -> str:
    """Returns which of the folders mounted here this user cannot use, "" for none.

    Args:
        places: A path each, behind "r" where it is to be read, or "w" where it is to be written too.
    """
    wanted = {"r": os.R_OK | os.X_OK, "w": os.R_OK | os.W_OK | os.X_OK}
    shut = [place[1:] for place in places if not os.access(place[1:], wanted[place[0]])]
    return ", ".join(shut)


def main() -> None:
    """Answers."""
    url, path, *places = sys.argv[1:]
    found = agent()
    answer = {"python": sys.version.split()[0], "closed": closed(places), **found}
    answer |= {} if found["agent_error"] else server(url)
    answer["time_s"] = time.time()  # noqa: TID251  (the clock that is being looked at)
    with open(path, "w", encoding="utf-8") as file:
        json.dump({name: value[:1_000] if isinstance(value, str) else value for name, value in answer.items()}, file)


if __name__ == "__main__":
    main()
