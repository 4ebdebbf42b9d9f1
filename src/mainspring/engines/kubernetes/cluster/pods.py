"""What pods of ours have besides an image: volumes, devices, accounts, labels; and what of it must be allowed by name.

A namespace that enforces Pod Security's profile `restricted` lets in all that is not in `BEYOND`. Of what is, each is
refused here unless the operator names it: what a lab's pods may do to its machines is read in one line.
Source: kubernetes.io/docs, "Pod Security Standards", "Volumes", "Configure a Security Context".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from mainspring.domain.errors import InvalidSpec
from mainspring.domain.fleet import MEMORY
from mainspring.domain.ids import TeamName, checked_name
from mainspring.engines.kubernetes.cluster.amounts import number

FOLDER = "/srv/mainspring"  # Of ours in every pod.
BUNDLE = f"{FOLDER}/bundle"  # Where a bundle is, in its image and in every pod; it runs nowhere else.
CAPABILITIES = ("IPC_LOCK", "SYS_NICE", "SYS_PTRACE")  # To pin memory for RDMA, to bind it to a NUMA node, to profile.
HOST_NETWORK, HOST_PATH, NFS, ROOT = "hostNetwork", "hostPath", "nfs", "root"
BEYOND = (HOST_NETWORK, HOST_PATH, NFS, ROOT, *CAPABILITIES)
PAGES = "hugepages-"  # What their resources' names begin with.
ENTRIES_MAX = 64  # Of each mapping; the API takes some thousands, at no use to anybody.
TEAMS_MAX = 10_000
NAME_LETTERS_MAX = 58  # Of a volume: the API takes 63, ours in front included.
_SYSTEM = ("/dev", "/proc", "/sys")
_OWN = ("mainspring/", "kueue.x-k8s.io/", "batch.kubernetes.io/")  # Said of each pod by who runs it.
_SOURCES = ("claim", "memory_gib", "csi", "nfs", "host")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodVolume:
    """Something that all our pods have mounted. It has one source.

    Args:
        path: Where.
        claim: A PersistentVolumeClaim of the namespace, which pods on several nodes may have at once.
        memory_gib: A file system in memory of that size; what is in it counts as the pod's memory.
        csi: A CSI driver that mounts without a claim, such as a bucket's.
        attributes: What that driver is told.
        nfs: "SERVER:/PATH".
        host: A folder of the pod's node, which must be there.
        read_only: Whether nothing is written there.
    """

    path: str
    claim: str = ""
    memory_gib: float = 0.0
    csi: str = ""
    attributes: Mapping[str, str] = field(default_factory=dict)
    nfs: str = ""
    host: str = ""
    read_only: bool = False

    def wrong(self) -> str:
        """Returns which field is wrong, and what it should be; "" for none."""
        sources = [name for name in _SOURCES if getattr(self, name)]
        plain = self.path.startswith("/") and str(PurePosixPath(self.path)) == self.path and ".." not in self.path
        ours = _within(self.path, FOLDER) or _within(FOLDER, self.path)
        system = self.path != MEMORY and any(_within(self.path, folder) for folder in _SYSTEM)
        rules = {
            "path": (not plain or ours or system, f"an absolute path, outside of {', '.join((FOLDER, *_SYSTEM))}"),
            "claim": (len(sources) != 1, f"one of {', '.join(_SOURCES)}"),
            "memory_gib": (not 0 <= self.memory_gib <= 1e5, "0 to 100000"),
            "nfs": (bool(self.nfs) and not self.nfs.partition(":")[2].startswith("/"), "SERVER:/PATH"),
            "host": (bool(self.host) and not self.host.startswith("/"), "an absolute path"),
            "attributes": (bool(self.attributes) and not self.csi, "nothing, where no driver is told them"),
        }
        return next((f"{name}: {wanted}" for name, (bad, wanted) in rules.items() if bad), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSettings:
    """What all our pods of a cluster have besides their image.

    Args:
        volumes: By name.
        devices: Extended resources besides chips, and huge pages, by name and how many: a pod that takes all chips of
            nodes that have them gets them too ({"rdma/hca": 1}).
        accounts: ServiceAccount by team: as whom its pods are known to the cluster's provider; teams below share it.
            Pods of all others have the namespace's own.
        labels: Of every pod, for those who look for them.
        annotations: The same.
        scheduler: Name of the scheduler that finds or checks their nodes; "" for the cluster's own.
        beyond: What pods may have beyond the profile `restricted`, out of `BEYOND`. Those that no other setting asks
            for, the host's network and capabilities, they have by that.
    """

    volumes: Mapping[str, PodVolume] = field(default_factory=dict)
    devices: Mapping[str, int | str] = field(default_factory=dict)
    accounts: Mapping[TeamName, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    scheduler: str = ""
    beyond: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Checks every field, and that nothing goes beyond what is allowed.

        Raises:
            InvalidSpec: A field is out of its range, or is not allowed.
        """
        for name in self.accounts.values():
            checked_name(name, "account")
        if self.scheduler:
            checked_name(self.scheduler, "scheduler")
        for name in self.volumes:
            fine = len(name) <= NAME_LETTERS_MAX and set(checked_name(name, "volume")).isdisjoint("._")
            _require("volumes", fine, name, f"names of a-z, 0-9 and '-', up to {NAME_LETTERS_MAX} letters")
        paths = [volume.path for volume in self.volumes.values()]
        for name, most in (("volumes", ENTRIES_MAX), ("devices", ENTRIES_MAX), ("accounts", TEAMS_MAX)):
            _require(name, len(getattr(self, name)) <= most, len(getattr(self, name)), f"up to {most}")
        _require("volumes", len(set(paths)) == len(paths), sorted(paths), "a path each")
        for name, volume in self.volumes.items():
            field_name, _, wanted = volume.wrong().partition(": ")
            _require(f"volumes.{name}.{field_name}", not wanted, volume, wanted)
        for name, amount in self.devices.items():
            fine = ("/" in name or name.startswith(PAGES)) and _is_amount(amount)
            _require(f"devices.{name}", fine, amount, "an extended resource, or pages, and how many")
        for kind in ("labels", "annotations"):
            own = [key for key in getattr(self, kind) if key.startswith(_OWN)]
            fine = not own and len(getattr(self, kind)) <= ENTRIES_MAX
            _require(kind, fine, own, f"up to {ENTRIES_MAX}, none of {', '.join(_OWN)}")
        _require("beyond", {*self.beyond} <= {*BEYOND}, self.beyond, f"out of {', '.join(BEYOND)}")
        for name, volume in self.volumes.items():
            self.require_allowed(HOST_PATH, f"pods.volumes.{name}.host", volume.host)
            self.require_allowed(NFS, f"pods.volumes.{name}.nfs", volume.nfs)
        if self.capabilities:  # The kernel takes them from every other user that a container begins as.
            self.require_allowed(ROOT, "pods.beyond", self.capabilities)

    def require_allowed(self, what: str, field_name: str, got: object) -> None:
        """Sees that something beyond `restricted` is allowed, where it is asked for.

        Args:
            what: Out of `BEYOND`.
            field_name: The field that asks for it.
            got: What it says; nothing where it does not ask.

        Raises:
            InvalidSpec: It is not.
        """
        if got and what not in self.beyond:
            raise InvalidSpec(
                "accept a Kubernetes cluster",
                on=f"field {field_name!r}",
                got=f"{got!r}, which goes beyond Pod Security's profile restricted",
                wanted=f"{what!r} named in pods.beyond",
                next_step=f"name it there, and let the namespace have it; or leave out {field_name}",
            )

    @property
    def capabilities(self) -> tuple[str, ...]:
        """Returns the kernel's capabilities that containers have."""
        return tuple(name for name in CAPABILITIES if name in self.beyond)

    @property
    def claims(self) -> Mapping[str, PodVolume]:
        """Returns the volumes that are PersistentVolumeClaims, by the claim's name."""
        return {volume.claim: volume for volume in self.volumes.values() if volume.claim}

    def account_of(self, teams: Iterable[TeamName]) -> str:
        """Returns the ServiceAccount of a job's pods, "" for the namespace's own.

        Args:
            teams: The team that is charged, and those above it, nearest first.
        """
        return next((self.accounts[team] for team in teams if team in self.accounts), "")


def _within(path: str, folder: str) -> bool:
    return PurePosixPath(path).is_relative_to(folder)


def _is_amount(amount: int | str) -> bool:
    try:
        return number(str(amount)) > 0
    except ValueError:
        return False


def _require(field_name: str, held: bool, got: object, wanted: str) -> None:  # noqa: FBT001
    if not held:
        on = f"field 'pods.{field_name}'"
        raise InvalidSpec("accept a Kubernetes cluster", on=on, got=repr(got)[:200], wanted=wanted)
