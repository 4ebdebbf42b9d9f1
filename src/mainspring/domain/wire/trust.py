"""What clients trust: this machine's own addresses, and over TLS the system's authorities and a lab's certificate."""

from __future__ import annotations

import ipaddress
import ssl
from urllib.parse import urlsplit

from mainspring.domain.errors import InvalidInput

CERTIFICATE_VARIABLE = "MAINSPRING_CERTIFICATE"  # Holds PEM text; nothing secret.


def is_loopback(host: str) -> bool:
    """Returns whether an address is this machine's own, which no network carries.

    Args:
        host: A name or an address.
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_private(url: str) -> bool:
    """Returns whether nobody on the way to an address can read or change what is said: TLS, or this machine's own.

    Args:
        url: An address, if it is one.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)))


def trust(url: str, certificate: str) -> ssl.SSLContext | bool:
    """Returns what httpx takes as `verify`.

    The system's authorities are those OpenSSL finds, so `SSL_CERT_FILE` and `SSL_CERT_DIR` name others.

    Args:
        url: What will be called; one without TLS needs no trust.
        certificate: PEM text trusted besides, whoever signed it; "" for none.

    Raises:
        InvalidInput: The text holds no certificate.
    """
    if not url.startswith("https:"):
        return False
    context = ssl.create_default_context()
    if certificate:
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # A server's own certificate is trusted as it stands.
        try:
            context.load_verify_locations(cadata=certificate)
        except (ssl.SSLError, ValueError) as error:
            raise InvalidInput("trust a certificate", got=str(error), wanted="PEM text") from error
    return context
