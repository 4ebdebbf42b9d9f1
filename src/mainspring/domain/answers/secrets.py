"""Secrets as people set and see them: their values are told by people, and never to them."""

from __future__ import annotations

from dataclasses import field

from mainspring.domain.codec import message
from mainspring.domain.errors import InvalidInput
from mainspring.domain.ids import SecretName, TeamName

VALUE_BYTES_MIN = 6  # Shorter ones could not be masked in output without masking ordinary words.
VALUE_BYTES_MAX = 64 << 10  # Half of what Linux takes as one variable.
VALUE_LINES_MAX = 256  # A chain of certificates with its key; each line is looked for in every rank's output.


@message("NewSecret")
class NewSecret:
    """The value of a secret: text of `VALUE_BYTES_MIN` to `VALUE_BYTES_MAX` bytes. Errors do not quote it."""

    value: str = field(repr=False)

    def __post_init__(self) -> None:
        """Checks the value.

        Raises:
            InvalidInput: It is too short, too long, of too many lines, or holds what no variable can.
        """
        size, lines = len(self.value.encode(errors="replace")), self.value.count("\n") + 1
        short = len(self.value.strip().encode(errors="replace")) < VALUE_BYTES_MIN
        bounds = f"{VALUE_BYTES_MIN} to {VALUE_BYTES_MAX} bytes"
        wrong = {
            f"{size} bytes": (short or size > VALUE_BYTES_MAX, bounds),
            f"{lines} lines": (lines > VALUE_LINES_MAX, f"at most {VALUE_LINES_MAX} lines"),
            "control characters": (any(_controls(letter) for letter in self.value), "text; bytes as base64"),
        }
        for got, (bad, wanted) in wrong.items():
            if bad:
                raise InvalidInput("accept a secret", got=got, wanted=wanted)


def _controls(letter: str) -> bool:
    return (ord(letter) < 32 and letter not in "\t\n\r") or ord(letter) == 127


@message("SecretView")
class SecretView:
    """One secret, without its value; `version` counts its values, and `maker` set this one."""

    team: TeamName
    name: SecretName
    version: int
    maker: str
    made_s: float


@message("SecretsRotated")
class SecretsRotated:
    """How many secrets are kept under a new key now, and none under an older one."""

    count: int
