"""Certificates that no authority signs: each stands for the one key that an end of a connection is known by.

Source: Ed25519, RFC 8032; a date without end, RFC 5280, 4.1.2.5.
"""

from __future__ import annotations

import os
import ssl
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

SEED_BYTES = 32  # Of Ed25519.
_FROM, _UNTIL = datetime(1970, 1, 1), datetime(9999, 12, 31, 23, 59, 59)  # In UTC, as X.509 has it.


def self_signed(key: Ed25519PrivateKey, name: str) -> str:
    """Returns a certificate as PEM text: for the same key and name the same, as Ed25519 signs.

    Args:
        name: What it is for.
    """
    named = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    builder = x509.CertificateBuilder(named, named, key.public_key(), 1, _FROM, _UNTIL)
    return builder.sign(key, None).public_bytes(Encoding.PEM).decode()


def load_key(context: ssl.SSLContext, key: Ed25519PrivateKey, certificate: str) -> None:
    """Has one end of connections be known by a key."""
    file = os.memfd_create("key", os.MFD_CLOEXEC)  # Python takes a key from a file only: this one is on no disk.
    try:
        os.write(file, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + certificate.encode())
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
