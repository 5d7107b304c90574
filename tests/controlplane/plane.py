"""Run a real control plane on loopback: etcd, kube-apiserver, kube-scheduler and, if wanted, more.

Owns the processes, their flags, users and kubeconfig files, all below one folder. It does not
create objects (objects.py) and plays no kubelet (kubelet.py). Start it from the main thread; the
reason stands in processes.py. Everything blocks; in an async test wait in `asyncio.to_thread`
where other tasks of the loop must go on meanwhile (`wait=False`, then `wait_for_*`).

    with ControlPlane("1.37", tmp_path) as plane:
        plane.start_scheduler({"profiles": [...], "extenders": [...]})
        async with plane.api() as api: ...
"""

from __future__ import annotations

import functools
import json
import ssl
import subprocess
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from deploy.compose.generate import HERE as COMPOSE
from deploy.compose.generate import flags_of
from deploy.demo.ports import free_port
from tests.controlplane.api import Api
from tests.controlplane.build import ensure_binaries, ensure_etcd
from tests.controlplane.processes import Process

FLAGS = COMPOSE / "flags.json"
# Files of deploy/kubernetes, in the order in which they are applied where the service runs outside of the cluster.
SHIPPED_MANIFESTS = (
    "namespace",
    "crds",
    "rbac",
    "priorityclasses",
    "flowschema",
    "admission-policy",
    "group-limits",
    "confinement",
)

# user -> (name, groups); the token of a user is "token-" and this key.
USERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "admin": ("admin", ("system:masters",)),
    # As a pod of our Deployment is seen, so that the RBAC in deploy/ binds to it and nothing else.
    "extender": (
        "system:serviceaccount:gang-extender:gang-extender",
        (
            "system:serviceaccounts",
            "system:serviceaccounts:gang-extender",
            "system:authenticated",
        ),
    ),
    "scheduler": ("system:kube-scheduler", ("system:authenticated",)),
    # As a pod of deploy/kubernetes/second-scheduler is seen.
    "gang-scheduler": (
        "system:serviceaccount:gang-extender:gang-scheduler",
        (
            "system:serviceaccounts",
            "system:serviceaccounts:gang-extender",
            "system:authenticated",
        ),
    ),
    # Its controllers would each need a ServiceAccount; the tests do not look at their rights.
    "controller-manager": ("system:kube-controller-manager", ("system:masters",)),
    # Other projects' controllers, all of them; as above.
    "workload-controllers": ("workload-controllers", ("system:masters",)),
    "developer": ("developer", ("system:authenticated",)),
}


def native_switches(minor: str) -> dict[str, dict[str, bool]]:
    """Read which gates and API versions make kube-apiserver serve the built-in groups in full."""
    table = json.loads(FLAGS.read_text(encoding="utf-8"))["native"][minor]
    return {
        flag.partition("=")[0]: {
            name: value == "true"
            for name, _, value in (p.rpartition("=") for p in flag.partition("=")[2].split(","))
        }
        for flag in table
    }


class ControlPlane:
    """One control plane; as a context manager it starts etcd and kube-apiserver and stops all."""

    def __init__(
        self,
        minor: str,
        folder: Path,
        *,
        native: bool = True,
        gates: Mapping[str, bool] | None = None,
        apis: Mapping[str, bool] | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        """Prepare everything; nothing runs yet.

        Args:
            minor: Pinned Kubernetes version, such as "1.37".
            folder: For data, certificates, kubeconfigs and logs; short-lived.
            native: Whether kube-apiserver serves the built-in groups (deploy/compose/flags.json).
            gates: Feature gates of kube-apiserver; they win over `native`.
            apis: `--runtime-config` of kube-apiserver; they win over `native`.
            flags: More flags of kube-apiserver.
        """
        self.minor = minor
        self.folder = folder
        self.binaries = ensure_binaries(minor)
        folder.mkdir(parents=True, exist_ok=True)
        table = native_switches(minor) if native else {}
        self._gates = table.get("--feature-gates", {}) | dict(gates or {})
        self._apis = table.get("--runtime-config", {}) | dict(apis or {})
        self._write_identities()
        etcd_port, peer_port, self.port = free_port(), free_port(), free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self.ca_file = folder / "certificates" / "apiserver.crt"
        self._etcd_url = f"http://127.0.0.1:{etcd_port}"
        self.etcd = self._etcd(f"http://127.0.0.1:{peer_port}")
        self.apiserver = self._apiserver(flags)
        self.schedulers: dict[str, Process] = {}
        self.controller_manager: Process | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start etcd and kube-apiserver, or start them again with their old data."""
        self.start_etcd()
        self.start_apiserver()

    def stop(self) -> None:
        """Stop everything: clients first, kube-apiserver before its etcd."""
        with ExitStack() as stack:  # the last pushed is the first stopped, whatever fails
            stack.callback(self.etcd.stop)
            stack.callback(self.apiserver.stop)
            if self.controller_manager is not None:
                stack.callback(self.controller_manager.stop)
            for scheduler in self.schedulers.values():
                stack.callback(scheduler.stop)

    # -- etcd and kube-apiserver -----------------------------------------------------------------

    def start_etcd(self, *, wait: bool = True) -> None:
        """Start etcd on its old data."""
        self.etcd.start()
        if wait:
            self.etcd.wait_until(lambda: answers(f"{self._etcd_url}/health"))

    def start_apiserver(self, *, wait: bool = True) -> None:
        """Start kube-apiserver; its port and users are the same as before."""
        self.apiserver.start()
        if wait:
            self.wait_for_apiserver()

    def wait_for_apiserver(self) -> None:
        """Wait until it is ready and has made its own namespaces and roles."""
        self.apiserver.wait_until(self._apiserver_is_ready)

    def _apiserver_is_ready(self) -> bool:
        return all(
            answers(f"{self.url}{path}", token=token_of("admin"), ca_file=self.ca_file)
            for path in ("/readyz", "/api/v1/namespaces/default")
        )

    # -- kube-scheduler and kube-controller-manager ----------------------------------------------

    def start_scheduler(
        self,
        config: str | Mapping[str, Any],
        *,
        name: str = "scheduler",
        user: str = "scheduler",
        gates: Mapping[str, bool] | None = None,
        flags: Sequence[str] = (),
        port: int | None = None,
        wait: bool = True,
    ) -> Process:
        """Start a kube-scheduler and wait until its caches are synced.

        Args:
            config: KubeSchedulerConfiguration as YAML text or as data. Filled in where it is
                silent: apiVersion, kind, the kubeconfig, and no leader election.
            name: Of this process, for tests that run two.
            user: One of `USERS`, whose rights it has.
            gates: Its feature gates; none, because ours is the stock scheduler at its defaults.
            flags: More flags.
            port: Where it serves its metrics, for who must know before it starts; a free one.
            wait: Whether to wait; without, call `wait_for_scheduler`.
        """
        data = dict(yaml.safe_load(config) if isinstance(config, str) else config)
        data.setdefault("apiVersion", "kubescheduler.config.k8s.io/v1")
        data.setdefault("kind", "KubeSchedulerConfiguration")
        data.setdefault("leaderElection", {"leaderElect": False})
        connection = data.setdefault("clientConnection", {})
        connection["kubeconfig"] = str(self.kubeconfig(user))
        file = self.folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(data), encoding="utf-8")
        port = port or free_port()
        command = [
            str(self.binaries / "kube-scheduler"),
            # Metrics need no protection here, and the service reads them (K60).
            *flags_of(
                "kube-scheduler", {"scheduler_config": str(file), "scheduler_port": str(port)}
            ),
            *_gate_flags(gates or {}),
            *flags,
        ]
        scheduler = Process(name, command, self.folder / f"{name}.log")
        if name in self.schedulers and self.schedulers[name].running:
            raise RuntimeError(f"{name} is running already")
        self.schedulers[name] = scheduler
        scheduler.start()
        if wait:
            self.wait_for_scheduler(name)
        return scheduler

    def wait_for_scheduler(self, name: str = "scheduler") -> None:
        """Wait until a kube-scheduler serves and its informers are synced."""
        scheduler = self.schedulers[name]
        scheduler.wait_until(lambda: answers(f"{self.scheduler_url(name)}/readyz"))

    def scheduler_url(self, name: str = "scheduler") -> str:
        """Return the URL of its `/metrics` and `/readyz` (certificate made up at start)."""
        flag = next(f for f in self.schedulers[name].command if f.startswith("--secure-port="))
        return f"https://127.0.0.1:{flag.partition('=')[2]}"

    def scheduler_metrics(self, name: str = "scheduler") -> str:
        """Read its metrics, in the text format of Prometheus."""
        url = f"{self.scheduler_url(name)}/metrics"
        with urllib.request.urlopen(url, context=_tls(None)) as response:
            text: str = response.read().decode()
            return text

    def stop_scheduler(self, name: str = "scheduler") -> None:
        """Stop a kube-scheduler; nothing happens when it does not run."""
        if name in self.schedulers:
            self.schedulers.pop(name).stop()

    def restart_scheduler(self, name: str = "scheduler") -> None:
        """Stop a kube-scheduler and start it with the same configuration."""
        scheduler = self.schedulers[name]
        scheduler.stop()
        scheduler.start()
        self.wait_for_scheduler(name)

    def start_controller_manager(
        self,
        controllers: Sequence[str] = ("disruption-controller",),
        gates: Mapping[str, bool] | None = None,
    ) -> Process:
        """Start kube-controller-manager with a few of its controllers and, if given, feature gates."""
        port = free_port()
        command = [
            str(self.binaries / "kube-controller-manager"),
            f"--kubeconfig={self.kubeconfig('controller-manager')}",
            f"--controllers={','.join(controllers)}",
            "--leader-elect=false",
            *("--bind-address=127.0.0.1", f"--secure-port={port}"),
            "--authentication-skip-lookup",
            *_gate_flags(gates or {}),
        ]
        log = self.folder / "controller-manager.log"
        self.controller_manager = Process("kube-controller-manager", command, log)
        self.controller_manager.start()
        self.controller_manager.wait_until(lambda: answers(f"https://127.0.0.1:{port}/healthz"))
        return self.controller_manager

    def stop_controller_manager(self) -> None:
        """Stop it; nothing happens when it does not run."""
        if self.controller_manager is not None:
            self.controller_manager.stop()
            self.controller_manager = None

    # -- users -----------------------------------------------------------------------------------

    def api(self, user: str = "admin") -> Api:
        """Make a client of one of `USERS`."""
        return Api(self.url, token_of(user), self.ca_file)

    def kubeconfig(self, user: str = "admin") -> Path:
        """Write (once) and name the kubeconfig file of one of `USERS`."""
        file = self.folder / f"{user}.kubeconfig"
        if not file.exists():
            cluster = {"server": self.url, "certificate-authority": str(self.ca_file)}
            document = {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "test",
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
                "clusters": [{"name": "test", "cluster": cluster}],
                "users": [{"name": user, "user": {"token": token_of(user)}}],
            }
            file.write_text(yaml.safe_dump(document), encoding="utf-8")
        return file

    def kubectl(
        self, *arguments: str, user: str = "admin", stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl; the caller looks at the exit code."""
        return subprocess.run(
            [self.binaries / "kubectl", f"--kubeconfig={self.kubeconfig(user)}", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            # Its discovery cache belongs to this API server and ends with it.
            env={"HOME": str(self.folder), "KUBECACHEDIR": str(self.folder / "kubectl-cache")},
        )

    # -- details ---------------------------------------------------------------------------------

    def _write_identities(self) -> None:
        lines = [
            f'{token_of(user)},{name},{name},"{",".join(groups)}"\n'
            for user, (name, groups) in USERS.items()
        ]
        (self.folder / "tokens.csv").write_text("".join(lines), encoding="utf-8")
        key, public = self.folder / "sa.key", self.folder / "sa.pub"
        if not key.exists():
            for command in (
                ["openssl", "genrsa", "-out", str(key), "2048"],
                ["openssl", "rsa", "-in", str(key), "-pubout", "-out", str(public)],
            ):
                subprocess.run(command, check=True, capture_output=True)

    def _values(self, peer_url: str = "") -> dict[str, str]:
        """Fill in the words of deploy/compose/flags.json, the one source of all flags."""
        return {
            "data": str(self.folder / "etcd"),
            "etcd_url": self._etcd_url,
            "etcd_peer_url": peer_url,
            "bind_address": "127.0.0.1",
            "apiserver_port": str(self.port),
            "certificates": str(self.ca_file.parent),
            "tokens": str(self.folder / "tokens.csv"),
            "service_account_key": str(self.folder / "sa.key"),
            "service_account_public_key": str(self.folder / "sa.pub"),
        }

    def _etcd(self, peer_url: str) -> Process:
        # --unsafe-no-fsync: a crash of the machine ends the test as well.
        command = [ensure_etcd(), *flags_of("etcd", self._values(peer_url))]
        return Process("etcd", command, self.folder / "etcd.log")

    def _apiserver(self, flags: Sequence[str]) -> Process:
        command = [
            str(self.binaries / "kube-apiserver"),
            # No ServiceAccount controller makes accounts, and no node controller lifts the taint.
            *flags_of("kube-apiserver", self._values()),
            *_gate_flags(self._gates),
            *_map_flag("runtime-config", self._apis),
            *flags,
        ]
        return Process("kube-apiserver", command, self.folder / "apiserver.log")


def token_of(user: str) -> str:
    """Return the token of one of `USERS`.

    Raises:
        KeyError: No user has that name.
    """
    if user not in USERS:
        raise KeyError(f"no user {user!r}; there are {', '.join(USERS)}")
    return f"token-{user}"


def _gate_flags(gates: Mapping[str, bool]) -> list[str]:
    return _map_flag("feature-gates", gates)


def _map_flag(name: str, values: Mapping[str, bool]) -> list[str]:
    text = ",".join(f"{key}={str(value).lower()}" for key, value in values.items())
    return [f"--{name}={text}"] if text else []


def answers(url: str, *, token: str | None = None, ca_file: Path | None = None) -> bool:
    """Return whether a URL answers 200 now; without a CA the certificate is not looked at."""
    if ca_file is not None and not ca_file.exists():
        return False  # kube-apiserver writes it at its first start
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30, context=_tls(ca_file)) as response:
            return bool(response.status == 200)
    except (OSError, ValueError):  # refused, not ready (HTTPError), certificate half written
        return False


@functools.cache
def _tls(ca_file: Path | None) -> ssl.SSLContext:
    """Return what a server is asked with; reading the certificates of the system costs more than the question."""
    if ca_file is None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
        return tls
    return ssl.create_default_context(cafile=str(ca_file))
