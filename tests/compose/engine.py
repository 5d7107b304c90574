"""podman with a configuration, images, networks and volumes of its own.

Owns where all of it is: below the cache folder, and below /run what ends with the machine. Nothing
that the machine's own podman has is read or changed. Needs root, and Debian's packages `podman`,
`buildah`, `runc`, `netavark`, `aardvark-dns` and `mmdebstrap`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.controlplane.build import cache_folder

PROGRAMS = ("podman", "buildah", "runc", "mmdebstrap")
RUN = Path("/run/gang-extender-compose")
# crun fails on hybrid control groups; limits may be lowered only.
CONTAINERS_CONF = """\
[containers]
default_ulimits = ["nofile=16384:16384", "nproc=16384:16384"]
log_driver = "k8s-file"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
tmp_dir = "{run}/libpod"
[network]
network_backend = "netavark"
network_config_dir = "{storage}/networks"
"""
STORAGE_CONF = """\
[storage]
driver = "overlay"
graphroot = "{storage}"
runroot = "{run}/storage"
{options}
"""
FUSE = '[storage.options.overlay]\nmount_program = "/usr/bin/fuse-overlayfs"\n'


class CannotRunError(Exception):
    """Containers do not run on this machine; the message has the reason in one line."""


class CommandError(Exception):
    """A command failed; the message has its output."""


def compose_folder() -> Path:
    """Return the folder of stand-ins and storage, beside that of the control plane's programs."""
    return cache_folder().parent / "compose"


class Engine:
    """podman as configured here; every command of it is run through this."""

    def __init__(self) -> None:
        """Write the configuration; nothing is run."""
        self.folder = compose_folder()
        self.storage = self.folder / "storage"
        self._containers_conf = self.folder / "containers.conf"
        self._storage_conf = self.folder / "storage.conf"
        self.environment = os.environ | {
            "CONTAINERS_CONF": str(self._containers_conf),
            "CONTAINERS_STORAGE_CONF": str(self._storage_conf),
        }

    def prepare(self) -> None:
        """Write the configuration and run podman once.

        Raises:
            CannotRunError: A program or a right is missing, or podman has no storage here.
        """
        if os.geteuid() != 0:
            raise CannotRunError("the containers of make compose need root")
        missing = [program for program in PROGRAMS if shutil.which(program) is None]
        if missing:
            raise CannotRunError(f"not installed: {', '.join(missing)} (apt-get install)")
        self.storage.mkdir(parents=True, exist_ok=True)
        self._write(self._containers_conf, CONTAINERS_CONF)
        self._write(self._storage_conf, STORAGE_CONF)
        native = self._attempt("info")
        if native.returncode != 0 and shutil.which("fuse-overlayfs"):  # overlay on overlay
            self._write(self._storage_conf, STORAGE_CONF, FUSE)
            native = self._attempt("info")
        if native.returncode != 0:
            raise CannotRunError(f"podman does not run: {native.stderr.strip()}")

    def check_runs(self, image: str) -> None:
        """Run a container with a network and a published port once.

        Raises:
            CannotRunError: The machine does not let it.
        """
        words = ["run", "--rm", "--pull=never", "--publish=127.0.0.1::80", image, "true"]
        tried = self._attempt(*words)
        if tried.returncode != 0:
            raise CannotRunError(f"podman runs no container: {tried.stderr.strip()}")

    def close(self) -> None:
        """Take away the mount that podman puts on its storage, so that the folder can be deleted."""
        place = self.storage / "overlay"
        if os.path.ismount(place):
            subprocess.run(["umount", place], check=True)

    def podman(self, *arguments: str, timeout_s: float = 600) -> str:
        """Run podman and return what it prints on stdout, stripped.

        Raises:
            CommandError: It failed.
        """
        done = self._attempt(*arguments, timeout_s=timeout_s)
        if done.returncode != 0:
            raise CommandError(f"podman {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout.strip()

    def succeeds(self, *arguments: str) -> bool:
        """Run podman and return whether its exit code is 0."""
        return self._attempt(*arguments).returncode == 0

    def show(self, command: Sequence[str], *, folder: Path, timeout_s: float = 1800) -> None:
        """Run a program with podman's configuration; its output goes where ours goes.

        Raises:
            CommandError: It failed.
        """
        done = subprocess.run(
            command, cwd=folder, env=self.environment, timeout=timeout_s, check=False
        )
        if done.returncode != 0:
            raise CommandError(f"exit code {done.returncode}: {' '.join(command)}")

    def _attempt(self, *arguments: str, timeout_s: float = 600) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["podman", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def _write(self, file: Path, text: str, options: str = "") -> None:
        file.write_text(
            text.format(storage=self.storage, run=RUN, options=options), encoding="utf-8"
        )
