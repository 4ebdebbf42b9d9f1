"""The page about running a lab tells the truth: its commands run, in order, and its table is the one in force."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from mainspring.domain.team import RIGHTS, Right, TeamRole, Whose
from tests.app.ready_ms import path_with_ready_ms

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
PEOPLE = [role for role in TeamRole if role is not TeamRole.ATTEMPT]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_commands_of_the_operations_page_run(tmp_path: Path) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")}
    environment["PATH"] = path_with_ready_ms()
    environment["MAINSPRING_HOME"] = str(tmp_path / "home")
    script = "\n".join(["set -eux -o pipefail", "trap 'ms down' EXIT", *blocks])
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=350
    )
    assert done.returncode == 0, done.stderr[-4_000:] + done.stdout[-2_000:]
    listings = [words.split() for words in done.stdout.splitlines() if " bo " in words]
    assert [words[1:4] for words in listings if words[1] == "bo"] == [["bo", "arms", "member"]]
    assert "bo: member of team arms, for " in done.stdout
    assert '"status":"ok"' in done.stdout


def test_the_table_of_rights_on_the_page_is_the_one_in_force() -> None:
    rows = ["| may | whose | " + " | ".join(role.value for role in PEOPLE) + " |", "|---" * (2 + len(PEOPLE)) + "|"]
    for right in Right:
        for whose in Whose:
            if (right, whose) in RIGHTS:
                marks = ["yes" if role in RIGHTS[right, whose] else "" for role in PEOPLE]
                rows.append("| " + " | ".join([right.value, whose.value, *marks]) + " |")
    shown = PAGE.read_text().partition("<!-- rights -->\n")[2].partition("\n<!-- end -->")[0]
    assert shown == "\n".join(rows)
