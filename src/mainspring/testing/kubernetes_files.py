"""Files and flags of a test's own Kubernetes: certificates, tokens, kubeconfig, and what each program is told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

HOST = "127.0.0.1"
# In the past and in the future of every test, whatever clock it runs by.
VALID_FROM = datetime(2020, 1, 1, tzinfo=UTC)
VALID_UNTIL = datetime(2120, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesNodes:
    """Nodes alike, which are objects only: no kubelet speaks for them, their status stands as it was given.

    Args:
        prefix: What their names begin with; "n": n1, n2, ...
        resource: The extended resource that counts their chips; "" where they have none.
        taints: As the API has them: {"key": ..., "effect": "NoSchedule"}.
    """

    count: int
    prefix: str = "n"
    resource: str = "nvidia.com/gpu"
    chips: int = 8
    cpus: str = "32"
    memory: str = "256Gi"
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, str], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Returns their names, in order."""
        return tuple(f"{self.prefix}{index + 1}" for index in range(self.count))

    def objects(self) -> list[dict[str, object]]:
        """Returns them as the API takes them, each ready."""
        chips = {self.resource: str(self.chips)} if self.resource else {}
        amounts = {"cpu": self.cpus, "memory": self.memory, "pods": "110", **chips}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "as the test says"}
        return [
            {
                "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **self.labels}},
                "spec": {"taints": [dict(taint) for taint in self.taints]},
                "status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]},
            }
            for name in self.names
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesPlace:
    """Where one control plane is.

    Args:
        private: Folder of keys and tokens, which nobody else may read.
        token: The administrator's.
        scheduler_token: The scheduler's.
        port: The API server's.
        etcd_port: For the API server.
        peer_port: For other members, of which there are none.
    """

    private: Path
    token: str = field(repr=False)
    scheduler_token: str = field(repr=False)
    port: int
    etcd_port: int
    peer_port: int

    @property
    def url(self) -> str:
        """Returns where the API is."""
        return f"https://{HOST}:{self.port}"

    @property
    def authority(self) -> Path:
        """Returns the certificate that vouches for the API server."""
        return self.private / "authority.pem"

    @property
    def kubeconfig(self) -> Path:
        """Returns the administrator's kubeconfig, by which the other programs find the API too."""
        return self.private / "kubeconfig"

    @property
    def scheduler(self) -> Path:
        """Returns the scheduler's, which is known by its own name: policies go by it."""
        return self.private / "scheduler"

    def write(self) -> None:
        """Writes every file."""
        _write_certificates(self.private)
        known = f'{self.token},admin,admin,"system:masters"\n{self.scheduler_token},system:kube-scheduler,scheduler\n'
        (self.private / "tokens.csv").write_text(known)
        for path, token in ((self.kubeconfig, self.token), (self.scheduler, self.scheduler_token)):
            cluster = {"server": self.url, "certificate-authority": str(self.authority)}
            named = {"clusters": {"cluster": cluster}, "users": {"user": {"token": token}}}
            context = {"contexts": {"context": {"cluster": "test", "user": "test"}}}
            lists = {key: [{"name": "test", **value}] for key, value in (named | context).items()}
            # JSON is YAML.
            path.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": "test", **lists}))

    def words(self, program: str, *, node_grace_s: int) -> tuple[str, ...]:
        """Returns the flags of a program.

        Args:
            node_grace_s: How long a node may say nothing before it counts as lost.
        """
        private, etcd, peer = self.private, f"http://{HOST}:{self.etcd_port}", f"http://{HOST}:{self.peer_port}"
        flags: Mapping[str, Mapping[str, object]] = {
            "etcd": {
                "data-dir": private / "etcd",
                "listen-client-urls": etcd,
                "advertise-client-urls": etcd,
                "listen-peer-urls": peer,
                "initial-advertise-peer-urls": peer,
                "initial-cluster": f"default={peer}",
                "unsafe-no-fsync": "true",
            },
            "kube-apiserver": {
                "etcd-servers": etcd,
                "bind-address": HOST,
                "advertise-address": HOST,
                "endpoint-reconciler-type": "none",  # It would refuse to announce an address of this machine alone.
                "secure-port": self.port,
                "tls-cert-file": private / "server.pem",
                "tls-private-key-file": private / "server.key",
                "client-ca-file": self.authority,
                "token-auth-file": private / "tokens.csv",
                "authorization-mode": "Node,RBAC",
                "service-account-issuer": "https://kubernetes.default.svc",
                "service-account-key-file": private / "accounts.key",
                "service-account-signing-key-file": private / "accounts.key",
                "service-cluster-ip-range": "10.0.0.0/24",
                "allow-privileged": "true",
            },
            "kube-controller-manager": {
                "kubeconfig": self.kubeconfig,
                "leader-elect": "false",
                "secure-port": 0,
                "service-account-private-key-file": private / "accounts.key",
                "root-ca-file": self.authority,
                "use-service-account-credentials": "true",  # Each controller is known by its own name, as on most.
                "node-monitor-grace-period": f"{node_grace_s}s",
            },
            "kube-scheduler": {"kubeconfig": self.scheduler, "leader-elect": "false", "secure-port": 0},
        }
        return tuple(f"--{name}={value}" for name, value in flags[program].items())


def _write_certificates(folder: Path) -> None:
    """Writes an authority, the API server's certificate by it, and the key that signs tokens of accounts."""
    key = _write_key(folder / "authority.key")
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority of a test")])
    mine = _certificate(key.public_key(), subject=name, issuer=name)
    mine = mine.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    _write_certificate(folder / "authority.pem", mine, key)
    server = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "kube-apiserver")])
    theirs = _certificate(_write_key(folder / "server.key").public_key(), subject=server, issuer=name)
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address(HOST)), x509.DNSName("localhost")])
    _write_certificate(folder / "server.pem", theirs.add_extension(names, critical=False), key)
    _write_key(folder / "accounts.key")


def _certificate(key: ec.EllipticCurvePublicKey, *, subject: x509.Name, issuer: x509.Name) -> x509.CertificateBuilder:
    made = x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key)
    made = made.serial_number(x509.random_serial_number())
    return made.not_valid_before(VALID_FROM).not_valid_after(VALID_UNTIL)


def _write_certificate(path: Path, made: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> None:
    path.write_bytes(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


def _write_key(path: Path) -> ec.EllipticCurvePrivateKey:
    made = ec.generate_private_key(ec.SECP256R1())
    path.write_bytes(
        made.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
    return made
