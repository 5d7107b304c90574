"""Calls at once on cold connections, from a client of Go as kube-scheduler has one: `python -m tests.bench.cold_calls`.

For 300 calls of filter, and for a gang of 1,000 whose members are filtered and bound at once: how often the client dials, how
many connections carry calls, what is refused, and the memory and the CPU time of the service (docs/limits.md).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from deploy.demo.ports import free_port
from tests.bench.memory import in_memory_mib, peak_mib
from tests.bench.stand import cpu_s_of
from tests.controlplane.build import build_ours
from tests.support.certificates import certificate_folder, client_context, files_of, tls_settings
from tests.support.service.manifest_builders import a_group, a_node, a_pod
from tests.support.waiting import until

PROGRAM = Path(__file__).parent / "coldcalls"
NODES = 20
RUNS = (("filter", 300), ("filter", 1_000), ("bind", 1_000))  # what is called, for how many pods


def main() -> None:
    """Print one line for each run."""
    program = build_ours(PROGRAM)
    for what, pods in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            print(what, pods, json.dumps(measure(program, Path(folder), what, pods)), flush=True)


def measure(program: Path, folder: Path, what: str, pods: int) -> dict[str, Any]:
    """Return what the client counted, and the memory of a service that was just started, in MiB.

    Args:
        program: The client.
        folder: An empty one.
        what: "filter", or "bind" after filter.
        pods: How many at once, all of one gang.
    """
    certificates = certificate_folder(folder / "certs")
    objects = [a_node(f"n{number}", cpu="200", pods="200") for number in range(NODES)]
    objects.append(a_group("g", gang=pods))
    objects += [
        a_pod(f"g-{number}", "g", metadata={"uid": f"uid-of-g-{number}"}) for number in range(pods)
    ]
    (folder / "cluster.yaml").write_text(yaml.safe_dump_all(objects))
    verbs, api = (f"127.0.0.1:{free_port()}" for _ in range(2))
    flags = tls_settings(certificates) | {
        "cluster": str(folder / "cluster.yaml"), "data_dir": str(folder / "data"), "listen": verbs, "api_listen": api,
        "advertise_url": f"https://{verbs}",
    }  # fmt: skip
    words = [
        word for name, value in flags.items() for word in (f"--{name.replace('_', '-')}", value)
    ]
    with (folder / "log").open("wb") as log:
        service = subprocess.Popen(
            [sys.executable, "-m", "extender", "serve", *words], stdout=log, stderr=log
        )
    try:
        until(lambda: planned(api, certificates) >= pods, "the gang is planned")
        before, before_s = in_memory_mib(service.pid), cpu_s_of(service.pid)
        files = files_of(certificates)
        given = [
            str(program),
            f"https://{verbs}",
            str(files.ca),
            str(files.certificate),
            str(files.key),
        ]
        output = subprocess.run(
            [*given, what, str(pods), str(NODES)], stdout=subprocess.PIPE, check=True
        ).stdout
        counted = json.loads(output)
        used_s = cpu_s_of(service.pid) - before_s
        return counted | {
            "cpu_ms_per_call": round(used_s * 1000 / counted["Answered"], 2),
            "before_mib": round(before), "peak_mib": round(peak_mib(service.pid)),
            "after_mib": round(in_memory_mib(service.pid)),
        }  # fmt: skip
    finally:
        service.terminate()
        service.wait()


def planned(api: str, certificates: Any) -> int:
    """Return how many reservations the service has; 0 while it does not answer."""
    try:
        with urllib.request.urlopen(
            f"https://{api}/v1/state", context=client_context(certificates, None)
        ) as reply:
            state = json.load(reply)
    except OSError:
        return 0
    return sum(gang.get("reserved", 0) for gang in state.get("gangs", ()))


if __name__ == "__main__":
    main()
