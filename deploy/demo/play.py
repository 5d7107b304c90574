"""`make demo`: the real service on an embedded PostgreSQL, killed in the middle of a gang and restarted.

Starts `gang-extender serve` as in production, on a cluster read from `deploy/examples/`, and acts
as kube-scheduler over HTTPS, with the certificates of `gang-extender certs`. All files are in a temporary folder; no process is left running.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rich.console import Console
from rich.tree import Tree

from deploy.demo.kube_scheduler import Player
from deploy.demo.ports import free_port

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parent / "examples"
READY_WITHIN_S = 180
out = Console(highlight=False, width=None if sys.stdout.isatty() else 110)


class Service:
    """The service as a child process."""

    def __init__(self, folder: Path, *, tls: bool = False) -> None:
        """Prepare it; with `tls` certificates are made, else it listens on loopback without."""
        self.folder = folder
        self.manifests = folder / "manifests"
        self.data = folder / "data"
        self.manifests.mkdir(mode=0o755)
        self.environ = {k: v for k, v in os.environ.items() if not k.startswith("GANG_EXTENDER_")}
        self.verbs_url = self.url = f"http://127.0.0.1:{free_port()}"
        self.listeners = ["--listen", self.url.removeprefix("http://")]
        self.tls: ssl.SSLContext | None = None  # of kube-scheduler: its certificate, and the CA
        if tls:
            self._use_certificates(folder / "pki")
        self.environ |= {"GANG_EXTENDER_DATA_DIR": str(self.data), "GANG_EXTENDER_SERVER": self.url}
        self.process: subprocess.Popen[bytes] | None = None

    def _use_certificates(self, pki: Path) -> None:
        """Make certificates; the verbs ask for one, the page and /v1 have a port of their own."""
        command = self.command("certs", str(pki))
        subprocess.run(command, cwd=HERE.parents[1], check=True, stdout=subprocess.DEVNULL)
        self.tls = ssl.create_default_context(cafile=pki / "ca.crt")
        self.tls.load_cert_chain(
            pki / "client-kube-scheduler.crt", pki / "client-kube-scheduler.key"
        )
        self.verbs_url = self.verbs_url.replace("http://", "https://")
        self.url = f"https://127.0.0.1:{free_port()}"
        self.listeners += [
            f"--api-listen={self.url.removeprefix('https://')}",
            f"--tls-cert-file={pki / 'server.crt'}",
            f"--tls-private-key-file={pki / 'server.key'}",
            f"--client-ca-file={pki / 'ca.crt'}",
        ]

    def command(self, *words: str) -> list[str]:
        """Return a command line of gang-extender."""
        return [sys.executable, "-m", "extender", *words]

    def start(self) -> float:
        """Start it, wait until it is ready, and return the seconds of the start."""
        log = (self.folder / "service.log").open("ab")
        began = time.monotonic()
        self.process = subprocess.Popen(
            self.command("serve", "--cluster", str(self.manifests), *self.listeners),
            cwd=HERE.parents[1],
            env=self.environ,
            stdout=log,
            stderr=log,
        )
        log.close()
        while not self.ready():
            if self.process.poll() is not None or time.monotonic() - began > READY_WITHIN_S:
                tail = (self.folder / "service.log").read_text()[-3000:]
                raise SystemExit(f"the service did not become ready; the end of its log:\n{tail}")
            time.sleep(0.05)
        return time.monotonic() - began

    def ready(self) -> bool:
        """Return whether /readyz answers 200."""
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=2, context=self.tls) as reply:
                return reply.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def get(self, path: str) -> dict:
        """Return an answer of the read API."""
        with urllib.request.urlopen(self.url + path, timeout=60, context=self.tls) as reply:
            return json.load(reply)

    def kill(self) -> None:
        """SIGKILL: no chance to clean up."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """SIGTERM, and wait."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def run_command(self, *words: str) -> None:
        """Run a gang-extender command and print its output."""
        out.print(f"[bold]$ gang-extender {' '.join(words)}[/bold]")
        done = subprocess.run(
            self.command(*words),
            cwd=HERE.parents[1],
            env=self.environ,
            check=False,
            capture_output=True,
            text=True,
        )
        print(done.stdout, end="")
        if done.returncode:
            raise SystemExit(
                f"gang-extender {' '.join(words)} ended with {done.returncode}: {done.stderr}"
            )


def heading(text: str) -> None:
    """Print a step."""
    out.print(f"\n[bold cyan]{text}[/bold cyan]")


async def wait_for(condition, what: str, within_s: float = 90.0) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {within_s:.0f} s without success for: {what}")
        await asyncio.sleep(0.05)


def show_tree(player: Player, gang: dict) -> None:
    """Print a gang as a tree of groups, each replica with its rack and nodes."""
    groups = player.view.groups
    namespace, _, name = gang["gang"].partition("/")
    where = {m["pod"]: m["node"] for m in gang["members"]}
    domains = {group["name"]: group["domain"] for group in gang["groups"]}

    def label(group) -> str:
        need = "any" if group.basic else f"at least {group.minimum}"
        unit = "pod" if group.key.kind == "PodGroup" else "group"
        unit += "" if group.minimum == 1 else "s"
        domain = domains.get(group.key.name, {})
        place = ", ".join(f"{k.rpartition('/')[2]} [green]{v}[/green]" for k, v in domain.items())
        return f"[bold]{group.key.name}[/bold] ({need} {unit})" + (f"  {place}" if place else "")

    def add(branch: Tree, group) -> None:
        if group.key.kind == "PodGroup":
            pods = sorted(player.view.members.get(group.key, {}).values(), key=lambda p: p.path)
            nodes = [where.get(pod.path) for pod in pods]
            text = label(group)
            if all(nodes):
                branch.add(f"{text}: {' '.join(nodes)}")
            elif any(nodes):
                branch.add(f"{text}: {' '.join(n or '-' for n in nodes)}")
            else:
                branch.add(f"{text}: [yellow]waits, {len(pods)} pods[/yellow]")
            return
        here = branch.add(label(group)) if group.parent else branch
        kids = [
            g
            for g in groups.values()
            if g.parent == group.key.name and g.key.namespace == namespace
        ]
        for kid in sorted(kids, key=lambda g: (g.created_us, g.key.name)):
            add(here, kid)

    root = next(g for g in groups.values() if g.key.name == name and g.parent is None)
    tree = Tree(label(root) if root.key.kind == "CompositePodGroup" else f"[bold]{name}[/bold]")
    add(tree, root)
    out.print(tree)
    state = f"{gang['state']}: {gang['bound']} bound, {gang['reserved']} reserved"
    out.print(state + (f"; the rest waits: {gang['reasons'][0]}" if gang["reasons"] else ""))


async def play(service: Service) -> None:
    """Play the demo."""
    shutil.copy(EXAMPLES / "cluster.yaml", service.manifests)
    shutil.copy(EXAMPLES / "serve.yaml", service.manifests)
    heading(
        "1. The service starts on an empty PostgreSQL of its own and a cluster read from deploy/examples/"
    )
    out.print(
        f"ready after {service.start():.1f} s; the verbs at {service.verbs_url} ask for a certificate"
    )
    player = Player(
        service.verbs_url, service.manifests, service.data / "cluster.jsonl", service.tls
    )
    racks = {n.labels.get("topology.example.com/rack") for n in player.view.nodes.values()}
    out.print(
        f"{len(player.view.nodes)} nodes in {len(racks)} racks; {len(player.raw)} pods wait or run"
    )

    heading("2. A disaggregated service: 1 prefill + 1 decode replica as the minimum, 4 + 2 wanted")
    await wait_for(lambda: player.watch() or player.ungated, "the admission of serve")
    await player.run_until_idle()
    gang = service.get("/v1/gangs/default/serve")
    show_tree(player, gang)
    if gang["state"] != "scheduled" or gang["bound"] < 8:
        raise SystemExit(f"serve should be scheduled with at least 8 pods bound, got {gang}")

    heading(
        "3. A second gang of 8; the service is killed with SIGKILL while half of it waits at bind"
    )
    shutil.copy(EXAMPLES / "train.yaml", service.manifests)
    player.reload()
    mine = [p for p in player.view.pods.values() if p.group is not None and p.group.name == "train"]
    await wait_for(
        lambda: player.watch() or all(p.uid in player.ungated for p in mine),
        "the admission of train",
    )
    half = sorted(mine, key=lambda p: p.path)[:4]
    held = []
    for pod in half:
        node = await player.place(pod)
        held.append(asyncio.create_task(player.bind(pod, node)))
    await asyncio.sleep(0.5)
    before = service.get("/v1/gangs/default/train")
    waiting = sum(not task.done() for task in held)
    out.print(
        f"{waiting} of {len(mine)} members wait at the barrier, {before['bound']} are bound; kill -9 {service.process.pid}"
    )
    service.kill()
    results = await asyncio.gather(*held, return_exceptions=True)
    if not all(isinstance(result, Exception) for result in results):
        raise SystemExit("a bind call was answered by a dead service")
    await player.close()
    out.print(f"started again, ready after {service.start():.1f} s")
    after = service.get("/v1/gangs/default/train")
    same = before["members"] == after["members"]
    out.print(f"reservations before and after the kill: {'the same' if same else 'DIFFERENT'}")
    if not same:
        raise SystemExit(f"before: {before['members']}\nafter: {after['members']}")
    await player.run_until_idle()
    gang = service.get("/v1/gangs/default/train")
    show_tree(player, gang)
    if gang["state"] != "scheduled" or gang["bound"] != len(mine):
        raise SystemExit(f"train should be bound as a whole, got {gang}")
    await player.close()

    heading("4. The log")
    service.run_command("history", "default/serve")
    service.run_command("history", "default/train")
    service.run_command("report", "reserved")
    service.run_command("verify")


def main() -> None:
    """Run the demo in a temporary folder."""
    folder = Path(tempfile.mkdtemp(prefix="gang-extender-demo-"))
    folder.chmod(0o755)  # as root the database runs as another user
    service = Service(folder, tls=True)
    began = time.monotonic()
    try:
        asyncio.run(play(service))
    finally:
        service.stop()
        shutil.rmtree(folder, ignore_errors=True)
    out.print(f"\nDone in {time.monotonic() - began:.0f} s; nothing is left running.")


if __name__ == "__main__":
    main()
