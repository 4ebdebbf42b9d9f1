"""TLS: a lab with a certificate of its own, its agents, and clients elsewhere."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring.app.base.client import Client
from mainspring.app.base.home import Config
from mainspring.app.sdk.lab import Lab, job
from mainspring.control.connections import Tls, listen
from mainspring.domain.errors import InvalidInput, InvalidSpec, NotAllowed, Unavailable
from mainspring.domain.ids import ClusterName
from mainspring.domain.life import JobState, ended
from mainspring.domain.wire.trust import CERTIFICATE_VARIABLE
from mainspring.engines.slurm.cluster.config import SlurmCluster
from tests.app.certificates import Certificate, self_signed
from tests.app.conftest import clusters, until


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return self_signed(tmp_path_factory.mktemp("tls"), name="localhost")


def config(certificate: Certificate, **fields: str) -> Config:
    given = {"host": "localhost", "certificate": str(certificate.chain), "key": str(certificate.key), **fields}
    return Config(clusters=clusters(), **given)  # type: ignore[arg-type]


@pytest.fixture
def lab(tmp_path: Path, certificate: Certificate) -> Iterator[Lab]:
    made = Lab(tmp_path / "home")
    made.home.write_config(config(certificate))
    made.up(port=0)
    yield made
    made.down()


@pytest.mark.slow
def test_a_job_runs_to_its_end_behind_a_certificate_nobody_else_vouches_for(lab: Lab) -> None:
    record = lab.home.server()
    assert record is not None
    assert record.url.startswith("https://localhost:")
    words = [
        sys.executable,
        "-c",
        f"import os; print(sorted(os.environ)); assert {CERTIFICATE_VARIABLE!r} not in os.environ",
    ]
    view = lab.run(job("secret", words, on=["h100"]))
    until(lambda: lab.status(view.id).state in (JobState.SUCCEEDED, JobState.FAILED), "the job to end")
    assert lab.status(view.id).state is JobState.SUCCEEDED
    assert lab.up().url == record.url, "found again, not started again"


@pytest.mark.parametrize("url", ["http://192.0.2.1:9", "http://example.org", "http://[2001:db8::1]:9"])
def test_no_token_goes_to_another_machine_in_the_clear(url: str) -> None:
    with pytest.raises(NotAllowed, match="plain HTTP"):
        Client(url, "a token")
    with pytest.raises(NotAllowed, match="plain HTTP"):
        Client(f"https://a,{url}", "a token")
    with Client(url.replace("http:", "https:"), "a token"), Client(url, ""):
        pass
    with Client("http://192.0.2.1:9", "a token", insecure=True), Client("http://127.0.0.1:9", "a token"):
        pass


@pytest.mark.slow
def test_a_client_elsewhere_trusts_what_its_environment_names_and_nothing_else(
    lab: Lab, certificate: Certificate
) -> None:
    record = lab.home.server()
    assert record is not None
    with Client(record.url, lab.home.token()) as stranger, pytest.raises(NotAllowed, match="SSL_CERT_FILE"):
        stranger.ps()
    other = Client(record.url.replace("localhost", "127.0.0.1"), "", certificate=certificate.chain.read_text())
    with other, pytest.raises(NotAllowed, match=r"127\.0\.0\.1"):
        other.ready()
    with Client(record.url.replace("https", "http"), lab.home.token()) as plain, pytest.raises(Unavailable):
        plain.ps()
    environment = {
        **os.environ,
        "MAINSPRING_URL": record.url,
        "MAINSPRING_TOKEN": lab.home.token(),
        "SSL_CERT_FILE": str(certificate.chain),
    }
    done = subprocess.run(
        [Path(sys.executable).with_name("ms"), "ps", "--json"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


@pytest.mark.slow
def test_a_server_whose_certificate_is_for_another_name_does_not_stay_up(
    tmp_path: Path, certificate: Certificate
) -> None:
    lab = Lab(tmp_path / "home")
    lab.home.write_config(config(certificate, host="127.0.0.1"))
    with pytest.raises(NotAllowed, match=r"not valid for '127\.0\.0\.1'"):
        lab.up(port=0)
    assert not lab.down()


@pytest.mark.slow
def test_a_public_url_behind_which_the_certificate_stands_names_the_server(
    tmp_path: Path, certificate: Certificate
) -> None:
    lab = Lab(tmp_path / "home")
    lab.home.write_config(config(certificate, host="127.0.0.1", public_url="https://localhost:9"))
    record = lab.up(port=0)
    assert record.url.startswith("https://localhost:")
    assert not record.url.endswith(":9")
    assert lab.down()


@pytest.mark.slow
def test_agents_come_through_a_declared_proxy_while_the_server_stays_on_loopback(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "home")
    lab.home.write_config(Config(clusters=clusters(), public_url="http://localhost:9,http://127.0.0.1:1"))
    record = lab.up(port=0)
    try:
        assert record.url.startswith("http://127.0.0.1:")
        view = lab.run(job("far", ["true"], on=["h100"]))
        orders = lab.home.engines / "alpha"
        until(lambda: any(orders.glob("*/node-0/order.json")), "an agent to be started")
        text = next(orders.glob("*/node-0/order.json")).read_text()
        assert '"controller":"http://localhost:9"' in text
        assert '"controllers_beside":["http://127.0.0.1:1"]' in text
        lab.stop(view.id)
        until(lambda: ended(lab.status(view.id).state), "its agent to end")
    finally:
        lab.down()


@pytest.mark.slow
def test_agents_and_leads_call_the_next_server_when_one_is_gone(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "home")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    lab.home.write_config(Config(clusters=clusters(), public_url=f"http://127.0.0.1:1,http://127.0.0.1:{port}"))
    lab.up(port=port)
    try:
        assert lab.wait(lab.run(job("reaches", ["true"], on=["h100"])).id, timeout_s=60).state is JobState.SUCCEEDED
    finally:
        lab.down()


def test_a_public_address_is_served_with_a_certificate_only(certificate: Certificate) -> None:
    with pytest.raises(NotAllowed, match="without TLS"):
        listen("0.0.0.0", 0)
    listen("0.0.0.0", 0, tls=Tls(certificate=certificate.chain, key=certificate.key)).close()


def test_a_key_of_another_certificate_is_told_before_anything_starts(tmp_path: Path, certificate: Certificate) -> None:
    other = self_signed(tmp_path, name="localhost")
    lab = Lab(tmp_path / "home")
    lab.home.write_config(config(certificate, key=str(other.key)))
    with pytest.raises(InvalidInput, match="KEY_VALUES_MISMATCH"):
        lab.up(port=0)


def test_a_key_in_the_same_file_is_never_handed_out(tmp_path: Path, certificate: Certificate) -> None:
    both = tmp_path / "both.pem"
    both.write_text(certificate.key.read_text() + certificate.chain.read_text())
    lab = Lab(tmp_path / "home")
    handed = lab.home.certificate(Config(certificate=str(both), key=str(both)))
    assert handed == certificate.chain.read_text()


@pytest.mark.parametrize("text", [None, b"no certificate", b"\xff"])
def test_a_certificate_that_cannot_be_read_is_told_by_its_path(tmp_path: Path, text: bytes | None) -> None:
    path = tmp_path / "chain.pem"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(InvalidSpec, match=r"chain\.pem"):
        Lab(tmp_path / "home").home.certificate(Config(certificate=str(path), key=str(path)))


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"certificate": "/a"}, "certificate"),
        ({"key": "/a"}, "certificate"),
        ({"certificate": "a", "key": "/a"}, "certificate"),
        ({"public_url": "lab:7077"}, "public_url"),
        ({"public_url": "https://lab/path"}, "public_url"),
        ({"public_url": "https://ada:secret@lab"}, "public_url"),
        ({"public_url": "https://lab:x"}, "public_url"),
        ({"public_url": "ftp://lab"}, "public_url"),
        ({"public_url": "https://a,https://a"}, "public_url"),
        ({"public_url": "https://a,http://b"}, "public_url"),
        ({"public_url": "http://lab"}, "public_url"),  # Agents would send their tokens in the clear.
        ({"host": "0.0.0.0"}, "public_url"),
    ],
)
def test_a_configuration_that_cannot_be_served_names_its_field(fields: dict[str, str], word: str) -> None:
    with pytest.raises(InvalidSpec, match=f"field '{word}'"):
        Config(**fields)  # type: ignore[arg-type]


def test_clusters_of_two_kinds_may_not_share_a_name(tmp_path: Path) -> None:
    slurm = SlurmCluster(name=ClusterName("alpha"), partitions=("ours",), shared="/shared")
    with pytest.raises(InvalidSpec, match="names that differ"):
        Config(clusters=(*clusters(), slurm))
    lab = Lab(tmp_path / "home")
    kept = Config(clusters=(*clusters()[1:], slurm))
    lab.home.write_config(kept)
    assert lab.home.config() == kept
