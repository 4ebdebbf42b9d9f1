"""Certificates for tests, made on the spot."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """PEM files."""

    chain: Path
    key: Path


def self_signed(folder: Path, *, name: str) -> Certificate:
    """Returns a certificate for one host name that nobody but itself vouches for."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl: apt-get install openssl")
    made = Certificate(chain=folder / "chain.pem", key=folder / "key.pem")
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    subject = ["-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}"]
    files = ["-keyout", str(made.key), "-out", str(made.chain)]
    words = ["openssl", "req", "-x509", "-nodes", "-days", "2", *curve, *subject, *files]
    subprocess.run(words, check=True, capture_output=True, timeout=120)
    return made
