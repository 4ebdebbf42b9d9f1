"""Access to a cluster: a context of a kubeconfig, or the account of the pod that this runs in.

Credentials renew by themselves: a token's file is read anew for every request, and a plugin is asked again when its
token is over or refused. Whoever reads the access anew has new certificates too. A plugin that hands out certificates,
and the providers that Kubernetes took out of `kubectl` in 1.26, are refused by name.
Source: kubernetes.io/docs/reference/config-api/kubeconfig.v1, client-authentication.v1.
"""

from __future__ import annotations

import base64
import binascii
import json
import ssl
import subprocess
import tempfile
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Any, final

import httpx
import yaml

from mainspring.domain.errors import InvalidSpec, NotFound, Unavailable, nearest
from mainspring.domain.ports import Clock

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # Source: "Accessing the API from a Pod".
PLUGIN_S_MAX = 60.0  # A plugin asks a provider over the network; nobody is there to type a password.
PLUGIN_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
EXPIRY_MARGIN_S = 10.0  # Renewed that long before its end, so that no request is refused for a clock that is off.
WORDS_MAX = 400  # Letters of a plugin's own words in a message.


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Where a cluster's API is, whom to trust there, and who we are.

    Args:
        trust: The certificates that vouch for the API, and ours where we are known by one.
        auth: Puts credentials on requests, None where a certificate is all.
        server_name: The name on the API's certificate, where it is not that of its URL.
        namespace: Where we are at home, "" where nobody said.
        proxy: Through which the API is reached, "" for none.
    """

    url: str
    trust: ssl.SSLContext = field(repr=False)
    auth: httpx.Auth | None = field(default=None, repr=False)
    server_name: str = ""
    namespace: str = ""
    proxy: str = ""


def pod_access(environment: Mapping[str, str], account: Path = ACCOUNT) -> Access | None:
    """Returns the access that the account of this pod has; None outside of a cluster.

    Args:
        account: The folder in which a pod finds its account.
    """
    host, port = (environment.get(f"KUBERNETES_SERVICE_{what}", "") for what in ("HOST", "PORT"))
    if not host or not (account / "token").exists():
        return None
    return Access(
        url=f"https://{f'[{host}]' if ':' in host else host}:{port or 443}",
        trust=ssl.create_default_context(cafile=str(account / "ca.crt")),
        auth=TokenFile(account / "token"),
        namespace=(account / "namespace").read_text().strip(),
    )


def read_kubeconfig(path: Path, context: str, *, environment: Mapping[str, str], clock: Clock) -> Access:
    """Returns the access that a kubeconfig describes.

    Args:
        context: Which of its contexts; "" for its current one.
        environment: The variables that a plugin gets.

    Raises:
        NotFound: There is no such file, or no such context in it.
        InvalidSpec: It says something that is not understood here, or that cannot be.
    """
    try:
        said = yaml.safe_load(path.read_text())
        named = {kind: _named(said.get(f"{kind}s") or (), kind) for kind in ("context", "cluster", "user")}
        wanted = context or said.get("current-context") or ""
        if wanted not in named["context"]:
            raise NotFound(
                "read a kubeconfig",
                on=str(path),
                got=f"no context {wanted!r}",
                wanted=nearest(wanted, named["context"]),
            )
        found = named["context"][wanted]
        cluster, user = named["cluster"][found["cluster"]], named["user"][found["user"]] if found.get("user") else {}
        return Access(
            url=str(cluster["server"]).rstrip("/"),
            trust=_trust(cluster, user, path.parent),
            auth=_auth(user, cluster, path.parent, environment=environment, clock=clock),
            server_name=cluster.get("tls-server-name") or "",
            namespace=found.get("namespace") or "",
            proxy=cluster.get("proxy-url") or "",
        )
    except yaml.YAMLError as error:
        # Its own words quote the text around, which may be a token.
        line = f" from line {mark.line + 1} on" if (mark := getattr(error, "problem_mark", None)) else ""
        raise InvalidSpec("read a kubeconfig", on=str(path), got=f"text that is no YAML{line}") from None
    except FileNotFoundError as error:
        raise NotFound(
            "read a kubeconfig", on=str(error.filename or path), next_step="name the right file, or write it anew"
        ) from error
    except (KeyError, TypeError, AttributeError, binascii.Error, OSError) as error:
        raise InvalidSpec(
            "read a kubeconfig",
            on=str(path),
            got=f"{type(error).__name__}: {error}"[:WORDS_MAX],
            wanted="a kubeconfig of API version v1",
        ) from error


@final
class TokenFile(httpx.Auth):
    """A token that somebody writes anew from time to time, as a kubelet does for its pods."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Puts the token on a request that the file holds now."""
        try:
            request.headers["Authorization"] = f"Bearer {self._path.read_text().strip()}"
        except OSError as error:
            raise Unavailable("read a token for Kubernetes", on=str(self._path), got=str(error)) from error
        yield request


@final
class Token(httpx.Auth):
    """A token that stays as it is."""

    def __init__(self, token: str) -> None:
        self._word = f"Bearer {token}"

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Puts it on a request."""
        request.headers["Authorization"] = self._word
        yield request


@final
class Plugin(httpx.Auth):
    """Tokens of a credential plugin, such as those of GKE and EKS. Safe to use from several threads at once.

    Args:
        said: What the kubeconfig says under `exec`.
        cluster: What it says of the cluster, which a plugin may want to know.
    """

    def __init__(
        self,
        said: Mapping[str, Any],
        cluster: Mapping[str, Any],
        *,
        folder: Path,
        environment: Mapping[str, str],
        clock: Clock,
    ) -> None:
        self._version = said.get("apiVersion", "")
        if self._version not in PLUGIN_VERSIONS:
            raise InvalidSpec(
                "use a credential plugin",
                on=str(said.get("command")),
                got=repr(self._version),
                wanted=" or ".join(PLUGIN_VERSIONS),
            )
        command = str(said["command"])
        # As kubectl: a path with a folder in it is below the kubeconfig's, a plain name is looked for in PATH.
        self._command = [str(folder / command) if "/" in command else command, *map(str, said.get("args") or ())]
        told = {"spec": {"interactive": False}} | (
            {"spec": {"interactive": False, "cluster": dict(cluster)}} if said.get("provideClusterInfo") else {}
        )
        info = {"apiVersion": self._version, "kind": "ExecCredential", **told}
        own = {each["name"]: str(each["value"]) for each in said.get("env") or ()}
        self._environment = {**environment, **own, "KUBERNETES_EXEC_INFO": json.dumps(info)}
        self._clock = clock
        self._lock = Lock()
        self._word = ""
        self._ends_s = 0.0

    def sync_auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Puts a token on a request, and a new one when that is refused."""
        word = self._current("")
        request.headers["Authorization"] = word
        answer = yield request
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            request.headers["Authorization"] = self._current(word)
            yield request

    def _current(self, refused: str) -> str:
        """Returns the header that holds now; asks the plugin for another than the refused one."""
        with self._lock:
            if self._word in ("", refused) or self._clock.now_s() >= self._ends_s - EXPIRY_MARGIN_S:
                status = self._ask()
                self._word = f"Bearer {status['token']}"
                ends = status.get("expirationTimestamp")
                self._ends_s = datetime.fromisoformat(ends).timestamp() if ends else float("inf")
            return self._word

    def _ask(self) -> Mapping[str, Any]:
        attempted, name = "ask a credential plugin", self._command[0]
        try:
            done = subprocess.run(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=PLUGIN_S_MAX,
                check=False,
            )
            if done.returncode:
                said = done.stderr.decode(errors="replace").strip()[-WORDS_MAX:]
                raise Unavailable(attempted, on=name, got=said or f"an end by code {done.returncode}")
            status: Mapping[str, Any] = json.loads(done.stdout)["status"]
            if not status.get("token"):
                raise Unavailable(
                    attempted, on=name, got="no token", wanted="a token; certificates are not taken from a plugin"
                )
        except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as error:
            raise Unavailable(attempted, on=name, got=f"{type(error).__name__}: {error}"[:WORDS_MAX]) from error
        return status


def _named(entries: Iterable[Mapping[str, Any]], kind: str) -> dict[str, Mapping[str, Any]]:
    return {each["name"]: each[kind] for each in entries}


def _trust(cluster: Mapping[str, Any], user: Mapping[str, Any], folder: Path) -> ssl.SSLContext:
    """Returns the certificates that vouch for the API, with ours."""
    if data := cluster.get("certificate-authority-data"):
        trust = ssl.create_default_context(cadata=base64.b64decode(data).decode())
    else:
        file = cluster.get("certificate-authority")
        trust = ssl.create_default_context(cafile=str(folder / file) if file else None)
    if cluster.get("insecure-skip-tls-verify"):
        trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    parts = []
    for what in ("client-certificate", "client-key"):
        if data := user.get(f"{what}-data"):
            parts.append(base64.b64decode(data))
        elif file := user.get(what):
            parts.append((folder / file).read_bytes())
    if parts:
        with tempfile.NamedTemporaryFile() as both:  # Its owner's alone; OpenSSL takes a file only.
            both.write(b"\n".join(parts))
            both.flush()
            trust.load_cert_chain(both.name)
    return trust


def _auth(
    user: Mapping[str, Any], cluster: Mapping[str, Any], folder: Path, *, environment: Mapping[str, str], clock: Clock
) -> httpx.Auth | None:
    if file := user.get("tokenFile"):
        return TokenFile(folder / file)
    if token := user.get("token"):
        return Token(token)
    if said := user.get("exec"):
        return Plugin(said, cluster, folder=folder, environment=environment, clock=clock)
    if "auth-provider" in user:
        raise InvalidSpec(
            "read a kubeconfig",
            on="field 'auth-provider'",
            got="a provider that Kubernetes took out in 1.26",
            wanted="a credential plugin (exec)",
        )
    return None
