"""Create a small cluster and the example tree on a running control plane, and print it bound.

    KUBECONFIG=/etc/kubernetes/admin.conf python deploy/compose/demo.py [FILE...]

Applies the manifests of deploy/kubernetes (all but the Deployment: the extender runs already), the
fleet of deploy/examples/cluster.yaml, and the files, by default deploy/examples/serve.yaml. Exit 0
when the minimum of every root in the files was scheduled; extra members without capacity are printed
as waiting. Server-side apply, and pods only where they are not there yet, so it may run again. PAGE is an
address that is printed last.
"""

from __future__ import annotations

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).resolve().parent.parent
MANIFESTS = (
    "namespace",
    "crds",
    "rbac",
    "priorityclasses",
    "flowschema",
    "admission-policy",
    "group-limits",
    "confinement",
)
GATE = "gang-extender.dev/admission"
TIMEOUT_S = 120.0
EXTENDER = os.environ.get("GANG_EXTENDER_SERVER", "https://127.0.0.1:8443")
PLURALS = {
    "PriorityClass": "priorityclasses",
    "MutatingAdmissionPolicy": "mutatingadmissionpolicies",
}
CLUSTERED = frozenset(
    {
        "ClusterRole",
        "ClusterRoleBinding",
        "CustomResourceDefinition",
        "FlowSchema",
        "MutatingAdmissionPolicy",
        "MutatingAdmissionPolicyBinding",
        "Namespace",
        "Node",
        "PersistentVolume",
        "PriorityClass",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    }
)
Object = dict[str, Any]


class ApiServer:
    """A minimal client of the API server."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig

    def call(self, method: str, path: str, body: Object | None = None, query: str = "") -> Object:
        """Return the answer of a request as a dict.

        Raises:
            urllib.error.URLError: No answer, or an error (HTTPError).
        """
        # Read each time: kube-apiserver writes the certificate that we trust when it starts.
        document = yaml.safe_load(self._kubeconfig.read_text(encoding="utf-8"))
        cluster = document["clusters"][0]["cluster"]
        token = document["users"][0]["user"]["token"]
        tls = ssl.create_default_context(cafile=cluster["certificate-authority"])
        request = urllib.request.Request(
            f"{cluster['server']}{path}{'?' + query if query else ''}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {token}",
                "Content-Type": "application/apply-patch+yaml"
                if method == "PATCH"
                else "application/json",
            },
        )
        with urllib.request.urlopen(request, context=tls, timeout=10) as response:
            answer = response.read()
        return json.loads(answer) if answer.startswith(b"{") else {}

    def apply(self, thing: Object) -> None:
        """Apply an object, and its status where it has one (no kubelet here writes it)."""
        path = f"{path_of(thing)}/{thing['metadata']['name']}"
        query = "fieldManager=gang-demo&force=true"
        self.call("PATCH", path, thing, query)
        if thing.get("status"):
            self.call("PATCH", f"{path}/status", thing, query)


def path_of(thing: Object) -> str:
    """Return the path of an object's collection."""
    version, kind = thing["apiVersion"], thing["kind"]
    plural = PLURALS.get(kind) or (
        kind[:-1].lower() + "ies" if kind.endswith("y") else kind.lower() + "s"
    )
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    if kind in CLUSTERED:
        return f"{root}/{plural}"
    return f"{root}/namespaces/{thing['metadata'].get('namespace', 'default')}/{plural}"


def read(file: Path) -> Iterator[Object]:
    """Return the objects of a file."""
    for document in yaml.safe_load_all(file.read_text(encoding="utf-8")):
        if document:
            yield document


def until(what: str, look: Callable[[], bool]) -> None:
    """Wait until a condition holds.

    Raises:
        SystemExit: It never was.
    """
    if what:
        print(f"waiting: {what}", flush=True)
    deadline_s, why = time.monotonic() + TIMEOUT_S, "no"
    while time.monotonic() < deadline_s:
        try:
            if look():
                return
        except (OSError, ValueError) as problem:
            why = str(problem)
        time.sleep(0.5)
    raise SystemExit(
        f"gave up after {TIMEOUT_S:.0f} s: {what}: {why}; what the others printed: docker compose logs"
    )


def policy_works(server: ApiServer) -> bool:
    """Return whether a pod that names a group gets our gate, by a dry run."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "probe", "labels": {"gang-extender.dev/pod-group": "probe"}},
        "spec": {"containers": [{"name": "probe", "image": "registry.k8s.io/pause:3.10.2"}]},
    }
    answer = server.call("POST", "/api/v1/namespaces/default/pods", pod, "dryRun=All")
    return GATE in [gate["name"] for gate in answer["spec"].get("schedulingGates", [])]


def apply_or_wait(server: ApiServer, thing: Object) -> None:
    """Apply an object; wait until its kind is served if its CRD was just applied."""

    def applied() -> bool:
        try:
            # The gate of a pod that was released may not be put back.
            if thing["kind"] != "Pod" or not exists(server, thing):
                server.apply(thing)
        except urllib.error.HTTPError as refusal:
            if refusal.code in {404, 409, 429} or refusal.code >= 500:
                return False
            raise SystemExit(f"{thing['kind']}: {refusal}: {refusal.read().decode()}") from refusal
        return True

    until("", applied)


def exists(server: ApiServer, thing: Object) -> bool:
    """Return whether an object exists."""
    try:
        server.call("GET", f"{path_of(thing)}/{thing['metadata']['name']}")
    except urllib.error.HTTPError as refusal:
        if refusal.code == 404:
            return False
        raise
    return True


def scheduled(server: ApiServer, group: Object) -> bool:
    """Return whether the minimum of a group was scheduled."""
    found = server.call("GET", f"{path_of(group)}/{group['metadata']['name']}")
    conditions = found.get("status", {}).get("conditions", [])
    wanted = f"{group['kind']}InitiallyScheduled"
    return any(c["type"] == wanted and c["status"] == "True" for c in conditions)


def node_of(server: ApiServer, pod: Object) -> str:
    """Return the node of a pod, or an empty string while it waits."""
    found = server.call("GET", f"{path_of(pod)}/{pod['metadata']['name']}")
    return str(found["spec"].get("nodeName", ""))


def show(server: ApiServer, pods: list[Object]) -> None:
    """Print where the pods are."""
    print(f"{'POD':<24} {'GROUP':<16} {'NODE':<12} {'RACK':<10} BLOCK")
    for pod in pods:
        group = pod["metadata"].get("labels", {}).get("gang-extender.dev/pod-group", "")
        node = node_of(server, pod)
        labels = server.call("GET", f"/api/v1/nodes/{node}")["metadata"]["labels"] if node else {}
        places = {key.rpartition("/")[2]: value for key, value in labels.items()}
        print(
            f"{pod['metadata']['name']:<24} {group:<16} {node or '(waits)':<12}"
            f" {places.get('rack', ''):<10} {places.get('block', '')}"
        )


def main(files: list[Path]) -> None:
    """Create the objects and wait until the trees are bound."""
    server = ApiServer(Path(os.environ["KUBECONFIG"]))
    until("API server", lambda: server.call("GET", "/readyz") == {})
    for name in MANIFESTS:
        for thing in read(DEPLOY / "kubernetes" / f"{name}.yaml"):
            apply_or_wait(server, thing)
    until("admission policy", lambda: policy_works(server))
    for thing in read(DEPLOY / "examples" / "cluster.yaml"):
        apply_or_wait(server, thing)
    until(
        "extender",
        lambda: urllib.request.urlopen(f"{EXTENDER}/readyz", timeout=5).status == 200,
    )
    things = [thing for file in files for thing in read(file)]
    for thing in things:
        apply_or_wait(server, thing)
    roots = [
        thing
        for thing in things
        if thing["kind"] in {"PodGroup", "CompositePodGroup"}
        and not thing["spec"].get("parentCompositePodGroupName")
    ]
    for root in roots:
        name = f"{root['kind']} {root['metadata']['name']}"
        until(f"{name} is scheduled", lambda root=root: scheduled(server, root))
    pods = [thing for thing in things if thing["kind"] == "Pod"]
    bound = -1
    while (now := sum(1 for pod in pods if node_of(server, pod))) != bound:  # extras follow
        bound = now
        time.sleep(2)
    show(server, pods)
    if page := os.environ.get("PAGE"):
        print(f"\nThe page: {page}")


if __name__ == "__main__":
    main([Path(one) for one in sys.argv[1:]] or [DEPLOY / "examples" / "serve.yaml"])
