"""Play docker-compose.yml: `python -m tests.compose`.

Exit 0 when every check passed; where containers cannot run it prints why and exits 0 as well, unless
CI=true. Exit 1 otherwise, with the last lines of every service. Nothing is left in either case but
the stand-ins and layers in the cache folder.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager

from tests.compose.engine import CannotRunError, CommandError, Engine
from tests.compose.images import NoStandInError, ensure_base, ensure_images
from tests.compose.leftovers import leftovers, remove_all, running, start_time
from tests.compose.project import Project, StoryError, until
from tests.compose.shipped_file import faults_of
from tests.controlplane.build import CannotBuildError, locked

FAULTS = (
    CommandError,
    StoryError,
    NoStandInError,
    CannotBuildError,
    OSError,
    subprocess.SubprocessError,
)


@contextmanager
def step(what: str) -> Iterator[None]:
    """Print the step that begins, and afterwards how long it took."""
    print(f"=== {what}", flush=True)
    began_s = time.monotonic()
    yield
    print(f"    {(time.monotonic() - began_s) / 60:.1f} min", flush=True)


def play(project: Project) -> None:
    """Build, bring up, look, kill, look again.

    Raises:
        StoryError: Something was not as it should be.
    """
    engine = project.engine
    if faults := faults_of(project.document):
        raise StoryError(f"docker-compose.yml: {'; '.join(faults)}")
    if found := leftovers(engine, project.address, project.port):
        raise StoryError(f"in the way: {'; '.join(found)}")
    with step("the image gang-extender is built from deploy/Dockerfile"):
        project.build()
    with step("docker-compose.yml is brought up"):
        project.up()
    with step("the demo's tree is bound"):
        until("the demo ends", lambda: project.completed("demo"))
        lines = project.logs("demo")
        print(lines)
        if not lines.rstrip().endswith(page := f"https://{project.address}:{project.port}/ui/"):
            raise StoryError(f"the demo does not end with the address of the page, {page}")
    with step("the page and the gangs are read through the published port"):
        page = project.get("/ui/")
        if "<html" not in page or "gang" not in page:
            raise StoryError(f"/ui/ is not the page: {page[:200]}")
        before = project.gangs()
        show(before)
        if not before or not all(gang["bound"] for gang in before.values()):
            raise StoryError("no gang is bound")
    with step("the extender is killed (SIGKILL), and comes back by the restart policy of the file"):
        pid = int(project.state("extender")["Pid"])
        os.kill(pid, signal.SIGKILL)
        until("the extender is another process", lambda: another(project, pid))
        until("the extender is ready", lambda: ready(project))
        after = project.gangs()
        if after != before:
            raise StoryError(f"other gangs after the kill:\n{show(before)}\n{show(after)}")
        print("    the same gangs, members, nodes and reservations")
        container = project.container("extender")
        print("   ", engine.podman("exec", container, "gang-extender", "verify"))
    with step("the demo runs once more, as in the head of the file"):
        project.compose("run", "--rm", "--no-deps", "-T", "demo")


def another(project: Project, pid: int) -> bool:
    """Return whether the extender runs as another process."""
    state = project.state("extender")
    return state["Status"] == "running" and int(state["Pid"]) not in {0, pid}


def ready(project: Project) -> bool:
    """Return whether the extender reports that it is ready."""
    try:
        return bool(project.get("/readyz"))
    except urllib.error.HTTPError as refusal:
        raise ValueError(refusal.read().decode()) from refusal


def show(gangs: dict[str, dict[str, object]]) -> None:
    """Print a line per gang."""
    for name, gang in gangs.items():
        words = {key: gang[key] for key in ("state", "bound", "reserved")}
        print(f"    {name}: {json.dumps(words)}")


def take_down(project: Project) -> None:
    """Take everything down and look for what is left.

    Raises:
        StoryError: Something is left.
    """
    engine = project.engine
    ids = engine.podman("ps", "--quiet").split()
    pids = [int(engine.podman("inspect", "--format={{.State.Pid}}", one)) for one in ids]
    began = {pid: start_time(pid) for pid in pids if pid}
    project.down()

    def nothing() -> bool:
        found = leftovers(engine, project.address, project.port)
        found += [f"process {pid}" for pid in running(began)]
        if found:
            raise ValueError("; ".join(found))
        return True

    until("nothing is left", nothing)
    print("    no container, pod, network, volume, mount, process or listener is left")


def report(project: Project) -> None:
    """Print the last lines of every service that has a container."""
    for name in project.document["services"]:
        try:
            text = f"{project.state(name)['Status']}\n{project.logs(name)}"
        except CommandError:
            continue
        print(f"--- {name}: {text}", flush=True)


def run(engine: Engine) -> int:
    """Do it all, and remove everything whatever happens."""
    project = Project(engine)
    remove_all(engine)  # of a run that was killed itself
    code = 1
    try:
        play(project)
        with step("everything is taken down, with the volumes"):
            take_down(project)
        code = 0
    except FAULTS as problem:
        print(f"FAILED: {problem}", flush=True)
        report(project)
    finally:
        remove_all(engine)
        engine.podman("image", "prune", "--force", "--filter=until=168h")
    return code


def main() -> int:
    """Prepare the engine and the stand-ins, then play."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began_s = time.monotonic()
    engine = Engine()
    try:
        engine.prepare()
        with locked(engine.folder / "run.lock"):
            try:
                with step("stand-ins of the images"):
                    base = ensure_base(engine)
                    engine.check_runs(base)
                    ensure_images(engine)
                code = run(engine)
            finally:
                engine.close()
    except CannotRunError as why:
        print(f"{'FAILED' if required() else 'skipped'}: {why}")
        return 1 if required() else 0
    except FAULTS as problem:
        print(f"FAILED: {problem}")
        return 1
    print(
        f"{'passed' if code == 0 else 'FAILED'} after {(time.monotonic() - began_s) / 60:.1f} min"
    )
    return code


def required() -> bool:
    """Return whether containers must run here: on CI."""
    return os.environ.get("CI") == "true"


if __name__ == "__main__":
    sys.exit(main())
