"""Write docker-compose.yml: the whole of it from here and from `flags.json`.

    python deploy/compose/generate.py > docker-compose.yml

A test compares the file with what this prints. All programs share the network of one idle
container, so that 127.0.0.1 means the same to all of them, as on a control plane node and as in
the tests; only the extender's API is published, and only on loopback. The verbs are called with TLS and certificates.
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
# The name of our image stands in pyproject.toml only; `make chart` repeats it where files cannot read it.
PROJECT = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
KUBERNETES = "v1.37.2"
IMAGES = {
    "network": "registry.k8s.io/pause:3.10.2",
    "etcd": "registry.k8s.io/etcd:3.7.0-0",
    "kube-apiserver": f"registry.k8s.io/kube-apiserver:{KUBERNETES}",
    "kube-scheduler": f"registry.k8s.io/kube-scheduler:{KUBERNETES}",
    "postgres": "docker.io/library/postgres:18.6",
    "extender": f"{PROJECT['name']}:{PROJECT['version']}",
}
ETC = "/etc/kubernetes"  # where a control plane node has such files; a volume that `setup` fills
CERTIFICATES = f"{ETC}/gang-extender"  # as in scheduler-config.yaml
API = "https://127.0.0.1:8443"
PORT = "${PAGE_PORT:-8443}"  # of the user's machine; in the network of the containers it is 8443
BUILDER = "extender"  # builds our image, which the others use: parallel builds of one tag fail
SHOWN = "demo"  # whose lines `up` prints
VALUES = {
    "data": "/var/lib/etcd",
    "etcd_url": "http://127.0.0.1:2379",
    "etcd_peer_url": "http://127.0.0.1:2380",
    "bind_address": "127.0.0.1",
    "apiserver_port": "6443",
    "scheduler_port": "10259",
    "certificates": f"{ETC}/pki",
    "tokens": f"{ETC}/tokens.csv",
    "service_account_key": f"{ETC}/sa.key",
    "service_account_public_key": f"{ETC}/sa.pub",
    "scheduler_config": "/deploy/kubernetes/scheduler-config.yaml",
}
OWNER_URL = "postgresql://gang:gang@127.0.0.1:5432/gang"
DATABASE_URL = "postgresql://gang_extender:gang@127.0.0.1:5432/gang"
INIT = "/docker-entrypoint-initdb.d"
HEADER = """\
# Generated from deploy/compose/flags.json; do not edit:
#   python deploy/compose/generate.py > docker-compose.yml
#
# A whole control plane on this machine, to try gangs on: etcd, kube-apiserver, kube-scheduler with
# the configuration of deploy/kubernetes, PostgreSQL, the extender, and a demo that creates nodes and
# the example tree and prints it bound:
#
#   docker compose up --build
#   docker compose run --rm demo          # once more
#   docker compose logs extender          # only the demo's lines are printed by `up`; each service keeps its own
#   docker compose down --volumes         # and nothing is left
#
# The demo ends with a table and the address of the page, https://127.0.0.1:8443/ui/, and the rest goes on; browsers warn,
# because they do not know the CA, which `setup` makes. PAGE_PORT=9443 docker compose up --build publishes another port.
#
# DEMO ONLY: fixed tokens and passwords, nothing is kept safe. Only this port of 127.0.0.1 is reachable, and asks for no
# token, because a browser has none to send.
"""

Service = dict[str, Any]


def flags_of(program: str, values: dict[str, str], *, native: str = "") -> list[str]:
    """Return the flags of a program.

    Args:
        program: etcd, kube-apiserver or kube-scheduler.
        values: For the words in braces.
        native: Kubernetes version whose built-in groups kube-apiserver is to serve; empty: none.
    """
    table = json.loads((HERE / "flags.json").read_text(encoding="utf-8"))
    more = table["native"][native] if native and program == "kube-apiserver" else []
    return [flag.format(**values) for flag in table[program]] + more


def _service(image: str, **more: Any) -> Service:
    """Return a service in the shared network; our image is that of this machine."""
    return {
        "image": IMAGES[image],
        **({"pull_policy": "never"} if image == "extender" else {}),
        "network_mode": "service:network",
        **more,
        # docker compose takes this from network_mode, podman-compose does not.
        "depends_on": _after(network="started") | more.get("depends_on", {}),
    }


def _bind(source: str, target: str) -> str:
    """Return a read-only bind; `z` lets containers read it where SELinux is on, and is nothing elsewhere."""
    return f"{source}:{target}:ro,z"


def _after(**conditions: str) -> Service:
    words = {
        "healthy": "service_healthy",
        "started": "service_started",
        "done": "service_completed_successfully",
    }
    return {name.replace("_", "-"): {"condition": words[c]} for name, c in conditions.items()}


def _health(*command: str) -> Service:
    return {"test": ["CMD", *command], "interval": "2s", "timeout": "5s", "retries": 60}


def control_plane() -> dict[str, Service]:
    """Return the services of Kubernetes."""
    etc = [f"kubernetes:{ETC}:ro"]
    return {
        "network": {"image": IMAGES["network"], "ports": [f"127.0.0.1:{PORT}:8443"]},
        "setup": _service(
            "extender",
            user="0:0",
            entrypoint=["python", "/deploy/compose/setup.py", ETC],
            volumes=[f"kubernetes:{ETC}", _bind("./deploy", "/deploy")],
        ),
        "etcd": _service(
            "etcd",
            command=["etcd", *flags_of("etcd", VALUES)],
            healthcheck=_health(
                "etcdctl", "--endpoints=http://127.0.0.1:2379", "endpoint", "health"
            ),
            volumes=["etcd:/var/lib/etcd"],
        ),
        "kube-apiserver": _service(
            "kube-apiserver",
            command=["kube-apiserver", *flags_of("kube-apiserver", VALUES)],
            depends_on=_after(etcd="healthy", setup="done"),
            restart="on-failure",
            volumes=[f"kubernetes:{ETC}"],  # it writes its own certificate there
        ),
        "kube-scheduler": _service(
            "kube-scheduler",
            command=["kube-scheduler", *flags_of("kube-scheduler", VALUES)],
            # It ends when the API server is not there yet, and its role is made by that.
            depends_on=_after(kube_apiserver="started"),
            restart="always",
            volumes=[*etc, _bind("./deploy", "/deploy")],
        ),
    }


def extender() -> dict[str, Service]:
    """Return the services of gang-extender."""
    environment = {
        "GANG_EXTENDER_DATABASE_URL": DATABASE_URL,
        "GANG_EXTENDER_LISTEN": "127.0.0.1:8888",  # kube-scheduler is in the same network
        "GANG_EXTENDER_API_LISTEN": "0.0.0.0:8443",  # published ports lead to the address of the container
        "GANG_EXTENDER_TLS_CERT_FILE": f"{CERTIFICATES}/server.crt",
        "GANG_EXTENDER_TLS_PRIVATE_KEY_FILE": f"{CERTIFICATES}/server.key",
        "GANG_EXTENDER_CLIENT_CA_FILE": f"{CERTIFICATES}/ca.crt",
        "GANG_EXTENDER_AUTHENTICATION": "none",  # see the head of the file
        "GANG_EXTENDER_BARRIER_TIMEOUT_S": "30",
        "KUBECONFIG": f"{ETC}/extender.conf",
    }
    return {
        "postgres": _service(
            "postgres",
            environment={
                "POSTGRES_USER": "gang",
                "POSTGRES_PASSWORD": "gang",
                "POSTGRES_DB": "gang",
            },
            command=["postgres", "-c", "listen_addresses=127.0.0.1"],
            healthcheck=_health("pg_isready", "--host=127.0.0.1", "--username=gang"),
            volumes=[
                "postgres:/var/lib/postgresql",
                _bind("./deploy/postgres/roles.sql", f"{INIT}/10-roles.sql"),
                _bind("./deploy/compose/logins.sql", f"{INIT}/20-logins.sql"),
            ],
        ),
        "migrate": _service(
            "extender",
            command=["db", "migrate"],
            environment={"GANG_EXTENDER_DATABASE_URL": OWNER_URL},
            depends_on=_after(postgres="healthy"),
        ),
        "extender": _service(
            "extender",
            command=["serve"],
            environment=environment,
            depends_on=_after(migrate="done", kube_apiserver="started"),
            healthcheck=_health(
                "python",
                "-c",
                "import ssl, urllib.request as r; "
                f"tls = ssl.create_default_context(cafile='{CERTIFICATES}/ca.crt'); "
                f"r.urlopen('{API}/livez', timeout=4, context=tls)",
            ),
            restart="on-failure",
            volumes=[f"kubernetes:{ETC}:ro"],
        ),
        "demo": _service(
            "extender",
            entrypoint=["python", "/deploy/compose/demo.py"],
            environment={
                "KUBECONFIG": f"{ETC}/admin.conf",
                "GANG_EXTENDER_SERVER": API,
                "SSL_CERT_FILE": f"{CERTIFICATES}/ca.crt",
                "PAGE": f"https://127.0.0.1:{PORT}/ui/",
            },
            depends_on=_after(extender="started", kube_scheduler="started"),
            volumes=[f"kubernetes:{ETC}:ro", _bind("./deploy", "/deploy")],
        ),
    }


def render() -> str:
    """Return the text of docker-compose.yml."""
    services = {**control_plane(), **extender()}
    services[BUILDER] |= {"build": {"context": ".", "dockerfile": "deploy/Dockerfile"}}
    del services[BUILDER]["pull_policy"]
    document = {
        "name": "gang-extender",
        "services": {
            name: service if name == SHOWN else service | {"attach": False}
            for name, service in services.items()
        },
        "volumes": {"kubernetes": {}, "etcd": {}, "postgres": {}},
    }

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
            return True

    return HEADER + yaml.dump(document, Dumper=Dumper, sort_keys=False, width=110)


if __name__ == "__main__":
    sys.stdout.write(render())
