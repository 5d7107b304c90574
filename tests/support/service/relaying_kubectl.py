"""A program with the words of kubectl that the command line uses; its cluster is a folder, its pods are a port.

Tests of the process of kubectl use it: when it starts, with which words, and that it ends. The real kubectl forwards
to a real API server in tests/e2e.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import threading
from pathlib import Path

NOT_FOUND = 'Error from server (NotFound): services "gang-extender" not found'


class RelayingKubectl:
    """Installs this program as kubectl into a folder for PATH, and knows what it did."""

    def __init__(self, folder: Path, port: int) -> None:
        """Install it; Service gang-extender/gang-extender leads to the port."""
        self.folder = folder
        self.environ = {
            "PATH": f"{folder}:{os.environ['PATH']}",
            "RELAYING_KUBECTL": str(folder / "cluster.json"),
        }
        program = folder / "kubectl"
        program.write_text(f"#!{sys.executable} -S\n{Path(__file__).read_text()}")
        program.chmod(0o755)
        self.describe(
            port=port, context="", here=["gang-extender/gang-extender"], labelled=[], trouble="",
            port_name="https", tokens={},
        )  # fmt: skip

    def describe(self, **changes: object) -> None:
        """Change the cluster.

        Args:
            changes: Of `port`: where forwarded connections lead; `context`: the current one; `here`: Services that can
                be forwarded to, `labelled`: those with the label, all as NAMESPACE/NAME; `port_name`: the name of their port; `tokens`: what is
                made for a ServiceAccount, by NAMESPACE/NAME; `trouble`: an error of all.
        """
        path = self.folder / "cluster.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(known | changes))

    @property
    def calls(self) -> list[dict[str, object]]:
        """Return each start: its words, its process id, its KUBECONFIG."""
        path = self.folder / "calls.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def forwards(self) -> list[dict[str, object]]:
        """Return the starts that forward a port."""
        return [call for call in self.calls if "port-forward" in call["words"]]

    def remove(self) -> None:
        """Remove it from PATH, and every other kubectl with it."""
        self.environ["PATH"] = str(self.folder / "empty")


def _relay(near: socket.socket, port: int) -> None:
    with near, socket.create_connection(("127.0.0.1", port)) as far:
        other = {near: far, far: near}
        while True:
            for ready in select.select([near, far], [], [])[0]:
                try:
                    piece = ready.recv(65536)
                    other[ready].sendall(piece)
                except OSError:  # one end was reset, as by a command that was killed
                    return
                if not piece:
                    return


def _forward(words: list[str], cluster: dict) -> int:
    where = words[words.index("--namespace") + 1]
    name = next(word for word in words if word.startswith("service/"))[8:]
    if f"{where}/{name}" not in cluster["here"]:
        print(NOT_FOUND, file=sys.stderr)
        return 1
    local, _, remote = words[-1].partition(":")
    if not remote.isdigit() and remote != cluster["port_name"]:
        print(f"error: Service '{name}' does not have a named port '{remote}'", file=sys.stderr)
        return 1
    with socket.create_server(("127.0.0.1", int(local or 0))) as listener:
        print("open https://login.example.com/device", file=sys.stderr, flush=True)
        port = listener.getsockname()[1]
        print(f"Forwarding from 127.0.0.1:{port} -> 8888", flush=True)
        while True:
            near, _ = listener.accept()
            print(f"Handling connection for {port}", flush=True)
            threading.Thread(target=_relay, args=(near, cluster["port"]), daemon=True).start()


def main() -> int:
    """Do what the words ask for."""
    path = Path(os.environ["RELAYING_KUBECTL"])
    words = sys.argv[1:]
    call = {"words": words, "pid": os.getpid(), "kubeconfig": os.environ.get("KUBECONFIG", "")}
    with (path.parent / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps(call) + "\n")
    cluster = json.loads(path.read_text())
    if "current-context" in words:
        print(cluster["context"] or "error: current-context is not set")
        return 0 if cluster["context"] else 1
    if cluster["trouble"]:
        print(cluster["trouble"], file=sys.stderr)
        return 1
    if "token" in words:
        account = f"{words[words.index('--namespace') + 1]}/{words[words.index('token') + 1]}"
        if account not in cluster["tokens"]:
            print(
                f'Error from server (NotFound): serviceaccounts "{account}" not found',
                file=sys.stderr,
            )
            return 1
        print(cluster["tokens"][account])
        return 0
    if "get" in words:
        names = [one.split("/") for one in cluster["labelled"]]
        items = [
            {
                "metadata": {"namespace": namespace, "name": name},
                "spec": {
                    "ports": [
                        {"name": "other", "port": 1},
                        {"name": cluster["port_name"], "port": 80},
                    ]
                },
            }
            for namespace, name in names
        ]
        print(json.dumps({"items": items}))
        return 0
    return _forward(words, cluster)


if __name__ == "__main__":
    sys.exit(main())
