"""Addresses of one lab's servers, as people write them: "URL[,URL...]". Any of them serves any call."""

from __future__ import annotations

from urllib.parse import urlsplit

from mainspring.domain.errors import InvalidInput

ADDRESSES_MAX = 16  # More servers than any lab puts on one store.


def addresses_of(text: str) -> tuple[str, ...]:
    """Returns the addresses that a text lists, each without a slash at its end.

    Raises:
        InvalidInput: It lists none, too many, one twice, or something that is none.
    """
    found = tuple(each.strip().rstrip("/") for each in text.split(","))
    wrong = next((each for each in found if not _is_address(each)), None)
    got = "" if wrong is None else f"{wrong[:200]!r}"
    if len(found) > ADDRESSES_MAX:
        got = f"{len(found)} addresses, more than {ADDRESSES_MAX}"
    elif wrong is None and len(set(found)) < len(found):
        got = "one address twice"
    if got:
        wanted = "http(s)://host[:port], or several with commas between them"
        raise InvalidInput("read a server's addresses", on=repr(text[:200]), got=got, wanted=wanted)
    return found


def passed_over(addresses: tuple[str, ...], failed: str) -> tuple[str, ...]:
    """Returns addresses in the order in which to call them from now on.

    Args:
        addresses: The one to call comes first.
        failed: One that did not answer; it comes last, unless another was to be called already.
    """
    return (*addresses[1:], failed) if addresses[0] == failed else addresses


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return False
    plain = text.isprintable() and not set(text) & set(" @?#")
    return plain and parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0
