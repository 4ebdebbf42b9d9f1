"""Node probe: the program of the job that `check` submits. Its text travels inside that job's script.

Nothing of Mainspring is imported before it is looked for: this runs under whatever Python the node has. What is then
looked for are the node's own modules, the ones its agents will use.
Arguments: the job's folder in the shared one, the scratch folder, the controller's URL, and the users that ranks are to
run as. Answers in `answer.json` there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from email.utils import parsedate_to_datetime
from importlib import import_module
from importlib.metadata import version

CALL_S = 10.0  # As long as an agent waits for the controller.
NETWORK_S = 20.0  # It reads some hundred small files.
USERS_S = 40.0  # A trial takes a fraction of a second, several at once; a job of the check has a minute.


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


def room(folder: str) -> dict[str, object]:
    """Returns how much room the scratch folder has, or why nothing can be written there."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix="mainspring-check-") as file:
            file.write(b"checked")
            file.flush()
        return {"scratch_error": "", "scratch_free_bytes": shutil.disk_usage(folder).free}
    except OSError as error:
        return {"scratch_error": error.strerror or str(error), "scratch_free_bytes": 0}


def server(url: str, certificate: str) -> dict[str, object]:
    """Returns how the controller answers, asked as an agent asks it.

    Args:
        url: Where; "" to ask nobody.
        certificate: PEM text of what to trust; "" for what the system trusts.
    """
    said: dict[str, object] = {"server_status": 0, "server_error": "", "server_ahead_s": None}
    if not url:
        return said
    try:
        import httpx

        from mainspring.domain.wire.trust import trust

        answer = httpx.get(f"{url}/v1/health", timeout=CALL_S, trust_env=False, verify=trust(url, certificate))
        said["server_status"] = answer.status_code
        if "date" in answer.headers:  # Whole seconds, cut off: half of one is added back.
            at_s = parsedate_to_datetime(answer.headers["date"]).timestamp() + 0.5
            said["server_ahead_s"] = at_s - time.time()  # noqa: TID251  (the clock that is being looked at)
    except Exception as error:  # noqa: BLE001  (as above)
        said["server_error"] = f"{type(error).__name__}: {error}"
    return said


def users(names: list[str], scratch: str) -> list[object]:
    """Returns what keeps agents from running ranks as which users, as an agent would here."""
    if not names:
        return []
    words = [sys.executable, "-P", "-m", "mainspring", "try-users", scratch, *names]
    try:
        tried = subprocess.run(words, capture_output=True, text=True, timeout=USERS_S, check=True)
        return list(json.loads(tried.stdout))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return [{"user": ", ".join(names), "found": str(getattr(error, "stderr", None) or error), "fix": ""}]


def network() -> list[object]:
    """Returns how the node's network is set up for collectives, as its own Mainspring says."""
    words = [sys.executable, "-P", "-m", "mainspring", "probes", "network", "--json"]
    try:
        looked = subprocess.run(words, check=False, capture_output=True, text=True, timeout=NETWORK_S)
        return [json.loads(line) for line in looked.stdout.splitlines()]
    except (OSError, ValueError, subprocess.SubprocessError):
        return []  # An older Mainspring knows no such program.


def _read(folder: str, name: str) -> str:
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        return file.read()


def main() -> None:
    """Answers."""
    folder, scratch_folder, url, *names = sys.argv[1:]
    asked, certificate = _read(folder, "asked"), _read(folder, "certificate.pem")
    said = {"asked": asked, "node": os.environ.get("SLURMD_NODENAME", ""), "python": sys.version.split()[0]}  # noqa: TID251  (Slurm says it nowhere else)
    answer = {**said, **agent(), **room(scratch_folder), **server(url, certificate)}
    answer["users"] = [] if answer["agent_error"] else users(names, scratch_folder)
    answer["network"] = [] if answer["agent_error"] else network()
    answer["time_s"] = time.time()  # noqa: TID251  (the clock that is being looked at)
    draft = os.path.join(folder, ".answer.json")
    with open(draft, "w", encoding="utf-8") as file:
        json.dump(answer, file)
    os.replace(draft, os.path.join(folder, "answer.json"))


if __name__ == "__main__":
    main()
