"""What clients trust: this machine's own addresses, and over TLS the system's authorities and a lab's certificate."""

from __future__ import annotations

import ipaddress
import ssl

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
