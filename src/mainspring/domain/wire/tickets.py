"""Tickets: who may call a replica of a service, and until when.

A replica has a secret of its own; the controller gives out tickets that are made from it, and the replica knows them
without asking anybody. So whoever calls holds nothing that is good for long, or elsewhere.
Source: HMAC, RFC 2104, with SHA-256.
"""

from __future__ import annotations

import hashlib
import hmac
import re

from mainspring.domain.ids import SecretName

SERVICE_SECRET = SecretName("MAINSPRING_SERVICE_SECRET")  # What a replica finds its secret as, a file; no team's.
TICKET_S = 43_200.0  # So long a proxy goes on that hears of no server: a night.
_TICKET = re.compile(r"ms-call\.([0-9]{1,12})\.[0-9a-f]{64}")


def new_ticket(secret: str, until_s: float) -> str:
    """Returns a ticket.

    Args:
        secret: The replica's.
        until_s: When it ends, in whole seconds.
    """
    until = f"{until_s:.0f}"
    return f"ms-call.{until}.{hmac.new(secret.encode(), f'call until {until}'.encode(), hashlib.sha256).hexdigest()}"


def is_ticket(secret: str, shown: str, now_s: float) -> bool:
    """Returns whether what somebody shows is a ticket of this secret that has not ended."""
    form = _TICKET.fullmatch(shown)
    return form is not None and hmac.compare_digest(shown, new_ticket(secret, int(form[1]))) and now_s < int(form[1])
