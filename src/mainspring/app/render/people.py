"""People on a screen: who may enter, what their teams keep, who did what."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import RenderableType

from mainspring.app.render.tables import Listing, ago
from mainspring.domain.answers import AuditLine, Blocked, SecretView, TokenView


def tokens_table(tokens: Sequence[TokenView], *, now_s: float) -> RenderableType:
    """Returns one row a token.

    Args:
        tokens: Newest first.
        now_s: For how long ago and how much longer.
    """
    made = Listing("TOKEN", "HOLDER", "TEAM", "ROLE", "?MADE BY", "?>AGE", "?>LAST USE", "ENDS")
    for token in tokens:
        used = "never" if token.used_s is None else f"{ago(max(0.0, now_s - token.used_s))} ago"
        ends = "never" if token.expires_s is None else f"in {ago(token.expires_s - now_s)}"
        if token.expires_s is not None and token.expires_s <= now_s:
            ends = "has ended"
        age = ago(max(0.0, now_s - token.made_s))
        made.add_row(token.id, token.holder or "-", token.team, token.role.value, token.maker, age, used, ends)
    return made


def blocks_table(blocks: Sequence[Blocked], *, now_s: float) -> RenderableType:
    """Returns one row for each who is kept out of a team.

    Args:
        blocks: In order.
        now_s: For how long ago.
    """
    made = Listing("HOLDER", "OUT OF TEAM", "BY", ">AGE")
    for block in blocks:
        made.add_row(block.holder, block.team, block.maker, ago(max(0.0, now_s - block.made_s)))
    return made


def secrets_table(secrets: Sequence[SecretView], *, now_s: float) -> RenderableType:
    """Returns one row a secret.

    Args:
        secrets: In order.
        now_s: For how long ago.
    """
    made = Listing("NAME", "TEAM", ">VERSION", "SET BY", ">AGE")
    for secret in secrets:
        age = ago(max(0.0, now_s - secret.made_s))
        made.add_row(secret.name, secret.team, str(secret.version), secret.maker, age)
    return made


def audit_table(lines: Sequence[AuditLine]) -> RenderableType:
    """Returns one row a line of the audit log.

    Args:
        lines: Oldest first.
    """
    made = Listing("?>NO", "WHEN", "WHO", "?TOKEN", "?FROM", "~DID", "~TO", "?TEAM", "OUTCOME")
    for line in lines:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line.time_s))
        facts = (line.holder, line.token or "-", line.address or "-", line.action, line.target, line.team or "-")
        made.add_row(str(line.sequence), when, *facts, line.outcome)
    return made
