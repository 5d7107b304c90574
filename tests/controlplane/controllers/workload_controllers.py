"""Run the workload controllers of other projects beside a control plane: JobSet, LeaderWorkerSet, Trainer, KubeRay, Kubeflow, Kueue.

Owns their processes, configuration files, certificate, CRDs and webhook configurations, and the built-in controllers
that they need (Job, StatefulSet, garbage collection). Everything listens on loopback; webhooks are called by URL with
a self-signed certificate. Like the plane it is started from the main thread, and blocks.

    with ControlPlane("1.37", folder) as plane, WorkloadControllers(plane): ...
"""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from deploy.demo.ports import free_port
from tests.controlplane.build import build_controllers, find_controllers
from tests.controlplane.controllers.kinds import create_kinds
from tests.controlplane.controllers.programs import DEFAULT_NAMES, PROGRAMS
from tests.controlplane.plane import ControlPlane, answers
from tests.controlplane.processes import NotReadyError, Process
from tests.support.waiting import until

# Restarts delete in the foreground, so nothing ends without the garbage collector.
BUILT_IN = (
    "job-controller",
    "statefulset-controller",
    "garbage-collector-controller",
    "namespace-controller",
)
NATIVE_GROUPS = ("podgroup-protection-controller",)  # takes the finalizer off built-in groups
# Where its pod webhooks may look: other pods can be created while a controller is away.
PODS_OF = {
    "jobset": "jobset.sigs.k8s.io/jobset-name",
    "lws": "leaderworkerset.sigs.k8s.io/name",
    "kueue": "kueue.x-k8s.io/queue-name",
}
CONFIG_GROUPS = {
    "jobset": "config.jobset.x-k8s.io",
    "lws": "config.lws.x-k8s.io",
    "trainer": "config.trainer.kubeflow.org",
}
# Kueue checks the certificate of its webhooks in this Secret, by these names, and renews one that ends within 90 days.
KUEUE_SECRET = {"name": "kueue-webhook-server-cert", "namespace": "kueue-system"}
CERTIFICATE_NAMES = "IP:127.0.0.1,DNS:kueue-ca,DNS:kueue-webhook-service.kueue-system.svc"
# It looks for the webhook of conversions in these definitions, which its own kustomization adds.
CONVERTED = ("localqueues", "clusterqueues", "workloads", "cohorts", "multikueueclusters")

# Objects that each of them must accept; none is stored. The first are those of kube-controller-manager.
PROBES = {
    "": """
{apiVersion: batch/v1, kind: Job, metadata: {name: probe, namespace: default}, spec: {template: {spec:
  {restartPolicy: Never, containers: [{name: main, image: registry.invalid/none}]}}}}
""",
    "jobset": """
{apiVersion: jobset.x-k8s.io/v1alpha2, kind: JobSet, metadata: {name: probe, namespace: default},
  spec: {replicatedJobs: [{name: a, template: {spec: {template: {spec:
    {restartPolicy: Never, containers: [{name: main, image: registry.invalid/none}]}}}}}]}}
""",
    "lws": """
{apiVersion: leaderworkerset.x-k8s.io/v1, kind: LeaderWorkerSet, metadata: {name: probe, namespace: default},
  spec: {leaderWorkerTemplate: {workerTemplate: {spec: {containers: [{name: main, image: registry.invalid/none}]}}}}}
---
{apiVersion: disaggregatedset.x-k8s.io/v1, kind: DisaggregatedSet, metadata: {name: probe, namespace: default},
  spec: {roles: [
    {name: a, spec: {replicas: 1, leaderWorkerTemplate: {workerTemplate: {spec:
      {containers: [{name: main, image: registry.invalid/none}]}}}}},
    {name: b, spec: {replicas: 1, leaderWorkerTemplate: {workerTemplate: {spec:
      {containers: [{name: main, image: registry.invalid/none}]}}}}}]}}
""",
    "trainer": """
{apiVersion: trainer.kubeflow.org/v1alpha1, kind: TrainJob, metadata: {name: probe, namespace: default},
  spec: {runtimeRef: {name: torch-distributed}}}
""",
    "kuberay": """
{apiVersion: ray.io/v1, kind: RayCluster, metadata: {name: probe, namespace: default},
  spec: {headGroupSpec: {rayStartParams: {}, template: {spec:
    {containers: [{name: main, image: registry.invalid/none}]}}}}}
""",
    "training-operator": """
{apiVersion: kubeflow.org/v1, kind: PyTorchJob, metadata: {name: probe, namespace: default},
  spec: {pytorchReplicaSpecs: {Worker: {template: {spec: {containers: [{name: pytorch, image: registry.invalid/none}]}}}}}}
""",
    "mpi-operator": """
{apiVersion: kubeflow.org/v2beta1, kind: MPIJob, metadata: {name: probe, namespace: default},
  spec: {mpiReplicaSpecs: {Launcher: {template: {spec: {containers: [{name: main, image: registry.invalid/none}]}}}}}}
""",
    "kueue": """
{apiVersion: kueue.x-k8s.io/v1beta2, kind: ResourceFlavor, metadata: {name: probe}, spec: {}}
---
{apiVersion: batch/v1, kind: Job, metadata: {name: probe, namespace: default, labels: {kueue.x-k8s.io/queue-name: probe}},
  spec: {suspend: true, template: {spec:
    {restartPolicy: Never, containers: [{name: main, image: registry.invalid/none}]}}}}
""",
}

Object = dict[str, Any]


class WorkloadControllers:
    """The controllers of one control plane; as a context manager it starts and stops them all.

    Attributes:
        processes: By name, for a test that stops, pauses or restarts one.
    """

    def __init__(
        self,
        plane: ControlPlane,
        names: Iterable[str] | None = None,
        *,
        gates: Mapping[str, bool] | None = None,
        feature_gates: Mapping[str, Mapping[str, bool]] | None = None,
    ) -> None:
        """Prepare; nothing runs yet.

        Args:
            plane: It must run; it outlives the controllers.
            names: Which of programs.py, such as "jobset"; all by default. "trainer" needs "jobset".
            gates: Feature gates of kube-controller-manager.
            feature_gates: Those of the others, by name: {"jobset": {"RestartJob": True}}.
        """
        self.plane = plane
        self.processes: dict[str, Process] = {}
        self._gates = dict(gates or {})
        self._feature_gates = {name: dict(on) for name, on in (feature_gates or {}).items()}
        chosen = DEFAULT_NAMES if names is None else tuple(names)
        if find_controllers(chosen) is None:
            for wrapper in dict.fromkeys(one.wrapper for one in PROGRAMS if one.name in chosen):
                build_controllers(wrapper)
        self._builds = find_controllers(chosen) or {}
        self._folder = plane.folder / "workload-controllers"
        self._webhooks: list[Object] = []
        self._health: dict[str, str] = {}
        self._ports: dict[str, int] = {}  # of their webhooks

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start them, and wait until an object of each kind passes their webhooks."""
        self._folder.mkdir(exist_ok=True)
        certificate = self._make_certificate()
        # Before kube-controller-manager: its garbage collector looks for new kinds only every 30 s.
        crds = [file for name in self._builds for file in self._crds(name, certificate)]
        if crds:
            create_kinds(self.plane, crds)
        groups = NATIVE_GROUPS if self._gates.get("GenericWorkload") else ()
        self.plane.start_controller_manager((*BUILT_IN, *groups), self._gates)
        self._start_all(self._builds, certificate)

    def _start_all(self, names: Iterable[str], certificate: Path) -> None:
        names = tuple(names)
        for name in names:
            self._start(name, certificate)
        if self._webhooks:
            self._apply("webhooks.yaml", self._webhooks)
        for name in names:
            self.processes[name].wait_until(partial(answers, self._health[name]))
        self._wait_for_webhooks()

    @contextmanager
    def also(self, name: str) -> Iterator[Process]:
        """Let another controller of programs.py run beside these meanwhile; in the main thread, and it blocks.

        Its kinds stay.
        """
        wrapper = next(one.wrapper for one in PROGRAMS if one.name == name)
        build_controllers(wrapper)
        self._builds |= find_controllers((name,)) or {}
        certificate = self._certificate
        create_kinds(self.plane, self._crds(name, certificate))
        before = list(self._webhooks)
        try:
            self._start_all((name,), certificate)
            yield self.processes[name]
        finally:
            added = [one for one in self._webhooks if one not in before]
            self._webhooks = before
            del self._builds[name]
            with ExitStack() as stack:
                stack.callback(self.processes.pop(name).stop)
                for one in added:
                    self._kubectl("delete", one["kind"].lower(), one["metadata"]["name"])

    def stop(self) -> None:
        """Stop them; kinds and objects stay, their webhooks are not called any more."""
        with ExitStack() as stack:
            stack.callback(self.plane.stop_controller_manager)
            for process in self.processes.values():
                stack.callback(process.stop)
            if self._webhooks and self.plane.apiserver.running:
                kinds = "mutatingwebhookconfigurations,validatingwebhookconfigurations"
                self._kubectl("delete", kinds, "--all")

    @contextmanager
    def feature_gates(self, name: str, **gates: bool) -> Iterator[None]:
        """Let a controller with a configuration file, such as "jobset", run with other feature gates meanwhile.

        It is restarted at the begin and at the end, in the main thread, and both block until its webhooks work.
        """
        file = self._folder / f"{name}.yaml"
        before = file.read_text(encoding="utf-8")
        self._configure(name, yaml.safe_dump(yaml.safe_load(before) | {"featureGates": gates}))
        try:
            yield
        finally:
            self._configure(name, before)

    def _configure(self, name: str, configuration: str) -> None:
        process = self.processes[name]
        process.stop()
        (self._folder / f"{name}.yaml").write_text(configuration, encoding="utf-8")
        process.start()
        process.wait_until(partial(answers, self._health[name]))
        self._wait_for_webhooks()

    # -- manifests -------------------------------------------------------------------------------

    def manifests(self, name: str, kind: str) -> list[Path]:
        """Return the manifests of a controller: its `crds`, `webhooks` or `runtimes`."""
        return sorted((self._builds[name] / "manifests" / name / kind).glob("*.yaml"))

    def _crds(self, name: str, certificate: Path) -> list[Path]:
        """Return the definitions of a controller as they are applied, with a certificate for what calls it."""
        self._ports[name] = free_port()
        files = self.manifests(name, "crds")
        if name != "kueue":
            return files
        self._prepare_kueue(certificate)
        definitions = [
            yaml.load(file.read_text(encoding="utf-8"), yaml.CSafeLoader) for file in files
        ]
        where = {
            "url": f"https://127.0.0.1:{self._ports[name]}/convert",
            "caBundle": base64.b64encode(certificate.read_bytes()).decode(),
        }
        for definition in definitions:
            if definition["spec"]["names"]["plural"] in CONVERTED:
                webhook = {"clientConfig": where, "conversionReviewVersions": ["v1"]}
                definition["spec"]["conversion"] = {"strategy": "Webhook", "webhook": webhook}
        return [self._write("kueue-crds.yaml", definitions)]

    def _prepare_kueue(self, certificate: Path) -> None:
        """Create its namespace, and the Secret from which it takes the certificate."""
        key = certificate.with_suffix(".key")
        files = {"ca.crt": certificate, "ca.key": key, "tls.crt": certificate, "tls.key": key}
        data = {name: base64.b64encode(file.read_bytes()).decode() for name, file in files.items()}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": KUEUE_SECRET, "data": data}
        namespace = {"name": KUEUE_SECRET["namespace"]}
        objects = [{"apiVersion": "v1", "kind": "Namespace", "metadata": namespace}, secret]
        self._apply("kueue-secret.yaml", objects)

    def _wait_for_webhooks(self) -> None:
        """Send what each webhook must answer until it does: `/readyz` is 200 before their paths are there."""
        if "trainer" in self._builds:
            runtimes = self.manifests("trainer", "runtimes")
            self._insist("apply", "--server-side", *(f"--filename={file}" for file in runtimes))
        probes = "\n---\n".join(PROBES[name] for name in ("", *self._builds))
        file = self._write("probes.yaml", yaml.safe_load_all(probes))
        self._insist("apply", "--server-side", "--dry-run=server", f"--filename={file}")

    def _apply(self, name: str, objects: Sequence[Object]) -> None:
        self._kubectl("apply", "--server-side", f"--filename={self._write(name, objects)}")

    def _write(self, name: str, objects: Iterable[Object]) -> Path:
        file = self._folder / name
        file.write_text(yaml.dump_all(objects, Dumper=yaml.CSafeDumper), encoding="utf-8")
        return file

    def _kubectl(self, *arguments: str) -> None:
        done = self.plane.kubectl(*arguments)
        if done.returncode != 0:
            raise NotReadyError(f"kubectl {' '.join(arguments)}: {done.stderr}")

    def _insist(self, *arguments: str) -> None:
        refusal = ""

        def accepted() -> bool:
            nonlocal refusal
            try:
                self._kubectl(*arguments)
            except NotReadyError as failed:
                ended = [process for process in self.processes.values() if not process.running]
                if ended:
                    tails = "\n".join(f"{process.name}: {process.tail()}" for process in ended)
                    raise NotReadyError(f"{failed}\n{tails}") from failed
                refusal = str(failed)
                return False
            return True

        until(accepted, f"kubectl {arguments[0]}", every_s=0.2, state=lambda: refusal)

    # -- programs --------------------------------------------------------------------------------

    def _start(self, name: str, certificate: Path) -> None:
        health, metrics, webhook = free_port(), free_port(), self._ports[name]
        self._health[name] = f"http://127.0.0.1:{health}/readyz"
        if name == "kuberay":
            # Its webhook only checks names; it has none that changes an object.
            flags = [
                f"--health-probe-bind-address=127.0.0.1:{health}",
                f"--metrics-addr=127.0.0.1:{metrics}",
                "--enable-leader-election=false",
            ]
        elif name in ("training-operator", "mpi-operator"):
            flags = [f"--health-probe-bind-address=127.0.0.1:{health}"]
        else:
            flags = [f"--config={self._config(name, health, webhook, certificate)}"]
            for file in self.manifests(name, "webhooks"):
                documents = yaml.load_all(file.read_text(encoding="utf-8"), yaml.CSafeLoader)
                self._webhooks += [
                    _on_loopback(one, name, webhook, certificate) for one in documents if one
                ]
        if name == "jobset":
            flags.append("--metrics-bind-address=0")
        self.processes[name] = Process(
            name,
            [str(self._builds[name] / name), *flags],
            self._folder / f"{name}.log",
            {
                "KUBECONFIG": str(self.plane.kubeconfig("workload-controllers")),
                # Trainer has no setting for the place of its certificate but this one.
                "TMPDIR": str(self._folder),
            },
        )
        self.processes[name].start()

    def _config(self, name: str, health: int, webhook: int, certificate: Path) -> Path:
        data: Object = {
            "apiVersion": f"{CONFIG_GROUPS.get(name)}/v1alpha1",
            "kind": "Configuration",
            "leaderElection": {"leaderElect": False},
            "metrics": {"bindAddress": "0"},
            "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
            "webhook": {"host": "127.0.0.1", "port": webhook},
        }
        if name == "kueue":
            data["apiVersion"] = "config.kueue.x-k8s.io/v1beta2"
            data["webhook"]["certDir"] = str(certificate.parent)
            kinds = ("jobset.x-k8s.io/jobset", "leaderworkerset.x-k8s.io/leaderworkerset")
            data["integrations"] = {"frameworks": ["batch/job", *kinds, "pod", "statefulset"]}
            # docs/how-to/kueue.md: a queue has quota for every resource of its pods, but not for our markers
            data["resources"] = {"excludeResourcePrefixes": ["gang-extender.dev/"]}
            # the one listens on a fixed port, the other needs the Secrets of further clusters
            data["featureGates"] = {"VisibilityOnDemand": False, "MultiKueue": False}
        elif name == "trainer":
            data["certManagement"] = {"enable": False}
        else:
            data["internalCertManagement"] = {"enable": False}
            data["webhook"]["certDir"] = str(certificate.parent)
        if gates := self._feature_gates.get(name):
            data["featureGates"] = gates
        return self._write(f"{name}.yaml", [data])

    def _make_certificate(self) -> Path:
        """Make a certificate for 127.0.0.1 where the programs look for it."""
        folder = self._folder / "k8s-webhook-server" / "serving-certs"
        folder.mkdir(parents=True, exist_ok=True)
        key = str(folder / "tls.key")
        # Kueue reads PKCS #1, which is the traditional format.
        make_key = ["openssl", "genrsa", "-traditional", "-out", key, "2048"]
        make_certificate = [
            *("openssl", "req", "-x509", "-key", key, "-days", "200", "-out"),
            *(str(folder / "tls.crt"), "-subj", "/CN=127.0.0.1"),
            *("-addext", f"subjectAltName={CERTIFICATE_NAMES}"),
        ]
        for command in (make_key, make_certificate):
            subprocess.run(command, check=True, capture_output=True)
        self._certificate = folder / "tls.crt"
        return self._certificate


def _on_loopback(configuration: Object, name: str, port: int, certificate: Path) -> Object:
    """Return a webhook configuration of a project as it calls our process: a name of its own, a URL, our certificate."""
    bundle = base64.b64encode(certificate.read_bytes()).decode()
    hooks = []
    for hook in configuration["webhooks"]:
        url = f"https://127.0.0.1:{port}{hook['clientConfig']['service']['path']}"
        more: Object = {"clientConfig": {"url": url, "caBundle": bundle}}
        if any("pods" in rule["resources"] for rule in hook["rules"]):
            there = {"key": PODS_OF[name], "operator": "Exists"}
            more["objectSelector"] = {"matchExpressions": [there]}
        hooks.append(hook | more)
    return configuration | {
        "metadata": {"name": f"{name}-{configuration['metadata']['name']}"},
        "webhooks": hooks,
    }
