"""What the operators of a cluster apply before it is added: the server's account, and policies that guard what is ours.

Written as YAML in the files of `yaml`, with names to fill in; the check of a set-up looks for the rights that those
give.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from string import Template

import yaml

from mainspring.domain.errors import InvalidSpec
from mainspring.domain.ids import checked_name

FILES = Path(__file__).parent / "yaml"
PORTS = ("443", "7077")  # Of object stores and package indexes, and of `ms up`.
PORTS_MAX = 64
CONTROLLERS = ("kueue-system",)  # Where Kueue's own installation puts it.
CONTROLLERS_MAX = 16
# Address and TCP port. Source: GKE "Use Workload Identity Federation", EKS "How EKS Pod Identity works".
_IDENTITY = {
    "gke": (("169.254.169.254/32", 80), ("169.254.169.252/32", 988)),
    "eks": (("169.254.170.23/32", 80), ("fd00:ec2::23/128", 80)),
}
_WAY = """
  - to:
    - ipBlock: {{cidr: "{address}"}}
    ports:
    - {{port: {port}, protocol: TCP}}"""
_ACTIONS = {"audit": "[Audit, Warn]", "deny": "[Deny]"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountWanted:
    """What is to be applied.

    Args:
        namespace: Of jobs.
        account: What the cluster calls the server, where that is not the account of this namespace.
        kueue: Whether jobs wait in its queues.
        offers: Whether nodes are ordered of its autoscaler.
        ports: TCP ports that jobs reach anywhere, besides the usual ones.
        accelerators: What is done about pods with accelerators that came another way: "audit", "deny", "" for nothing.
        identity: Whose metadata servers jobs reach, by which pods are known to a provider: "gke", "eks", "" for none.
        controllers: Namespaces whose accounts may change what is ours, as those of kube-system may; none for Kueue's.
    """

    namespace: str = "mainspring"
    account: str = ""
    kueue: bool = False
    offers: bool = False
    ports: tuple[str, ...] = ()
    accelerators: str = ""
    identity: str = ""
    controllers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            InvalidSpec: A field is out of its range.
        """
        for name in (self.namespace, *self.controllers):
            checked_name(name, "namespace")
        ports = [port for port in self.ports if not (port.isdecimal() and 0 < int(port) < 1 << 16)]
        wrong = {
            "namespace": (not set(self.namespace).isdisjoint("._"), "the name of a namespace: a-z, 0-9 and '-'"),
            "controllers": (
                not set("".join(self.controllers)).isdisjoint("._") or len(self.controllers) > CONTROLLERS_MAX,
                f"up to {CONTROLLERS_MAX} names of namespaces",
            ),
            "account": (
                len(self.account) > 256 or not self.account.isprintable() or not set(self.account).isdisjoint("\"'\\$"),
                "the name of a user, as kubectl auth whoami tells it",
            ),
            "ports": (bool(ports) or len(self.ports) > PORTS_MAX, f"up to {PORTS_MAX}, each 1 to 65535"),
            "identity": (self.identity not in ("", *_IDENTITY), f"one of {', '.join(_IDENTITY)}"),
            "accelerators": (self.accelerators not in ("", *_ACTIONS), f"one of {', '.join(_ACTIONS)}"),
        }
        for name, (bad, wanted) in wrong.items():
            if bad:
                got = repr(getattr(self, name))[:200]
                raise InvalidSpec("write manifests", on=f"option {name!r}", got=got, wanted=wanted)

    def text(self) -> str:
        """Returns it as YAML, a document for each object."""
        own = f"system:serviceaccount:{self.namespace}:mainspring"
        subject = f"{{kind: ServiceAccount, name: mainspring, namespace: {self.namespace}}}"
        if self.account not in ("", own):
            subject = f'{{apiGroup: rbac.authorization.k8s.io, kind: User, name: "{self.account}"}}'
        spaces = ("kube-system", *(self.controllers or CONTROLLERS))
        filled = {
            "controllers": ", ".join(f'"system:serviceaccounts:{space}"' for space in dict.fromkeys(spaces)),
            "namespace": self.namespace,
            "account": self.account or own,
            "subject": subject,
            "ports": "\n".join(
                f"    - {{port: {port}, protocol: TCP}}" for port in dict.fromkeys((*PORTS, *self.ports))
            ),
            "identity": "".join(
                _WAY.format(address=address, port=port) for address, port in _IDENTITY.get(self.identity, ())
            ),
            "actions": _ACTIONS.get(self.accelerators, ""),
        }
        wanted = {
            "account": True,
            "kueue": self.kueue,
            "offers": self.offers,
            "network": True,
            "objects": True,
            "cordons": True,
            "accelerators": bool(self.accelerators),
        }
        texts = [(FILES / f"{name}.yaml").read_text() for name, is_wanted in wanted.items() if is_wanted]
        return "---\n".join(Template(text).substitute(filled) for text in texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountRight:
    """Something that the server must be allowed.

    Args:
        group: Of the API; "" for its core.
        resource: Such as "pods", or "pods/log".
        everywhere: Whether it is of the whole cluster, not only of our namespace.
    """

    verb: str
    group: str
    resource: str
    everywhere: bool


def rights(account: AccountWanted) -> Iterator[AccountRight]:
    """Yields the rights that an account is given."""
    for found in yaml.safe_load_all(account.text()):
        for rule in found.get("rules") or ():
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    (group,) = rule["apiGroups"]
                    everywhere = found["kind"] == "ClusterRole"
                    yield AccountRight(verb=verb, group=group, resource=resource, everywhere=everywhere)
