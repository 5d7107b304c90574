"""docs/how-to/backup-and-restore.md, followed by the letter in the middle of a gang, on a PostgreSQL server and with the real service.

Every command of the page runs, as the account of the server or as ours, or is played here: the cluster is one of manifests, so
what asks a kube-apiserver has its equivalent below. A command that is none of these fails.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess

import pytest

from tests.acceptance.test_history_lost import (
    a_world,
    after_the_copy,
    all_ends_well,
    before_the_copy,
    folder,  # noqa: F401 -- a fixture
)
from tests.acceptance.test_process_kills import ROOT
from tests.support.logs.plain_server import plain_server
from tests.support.page_commands import blocks, commands
from tests.support.waiting import eventually

pytestmark = pytest.mark.postgres
PAGE = "docs/how-to/backup-and-restore.md"
LOGINS = """
CREATE ROLE gang_extender LOGIN PASSWORD 'first' IN ROLE gx_writer;
CREATE ROLE gang_migrator LOGIN PASSWORD 'first' IN ROLE gx_owner;
"""  # deploy/README.md, Database roles
PLAYED = {
    "kubectl -n gang-extender get configmap gang-extender-log -o yaml > /backup/anchors.yaml": "save anchors",
    "kubectl -n gang-extender scale deployment/gang-extender --replicas=0": "stop",
    "kubectl -n gang-extender scale deployment/gang-extender --replicas=2": "start",
    "kubectl -n gang-extender rollout status deployment/gang-extender": "ready",
}
# pkg/management/postgres/initdb.go of CloudNativePG 1.28.0, ConfigureNewInstance: what is there is not created again
ASKED_BY_CLOUDNATIVE_PG = (
    "SELECT COUNT(*) > 0 FROM pg_catalog.pg_roles WHERE rolname = 'gang_migrator'",
    "SELECT COUNT(*) > 0 FROM pg_catalog.pg_database WHERE datname = 'gang_extender'",
)
# docs/src/recovery.md of it, "Configure the application database", and the roles of spec.managed
RUN_BY_CLOUDNATIVE_PG = """
ALTER DATABASE gang_extender OWNER TO gang_migrator;
ALTER ROLE gang_migrator LOGIN PASSWORD 'second';
ALTER ROLE gang_extender LOGIN PASSWORD 'second';
GRANT gx_writer TO gang_extender;
GRANT gx_owner TO gang_migrator;
"""
TARGET = "2026-11-25 09:41:07+00"


class Operator:
    """Follows the page."""

    def __init__(self, server, world):
        self.server = server
        self.world = world
        self.backups = server.backups
        place = self.server.backups.parent / "deploy" / "postgres"  # where its account can read it
        place.mkdir(parents=True)
        shutil.copy(ROOT / "deploy" / "postgres" / "roles.sql", place)
        place.chmod(0o755)
        place.parent.chmod(0o755)

    async def follow(self, block, **filled_in):
        """Run the commands of a block; return what they printed."""
        printed = ""
        for command in commands(block):
            text = command.replace("/backup/", f"{self.backups}/")
            for words, value in filled_in.items():
                text = text.replace({"target": TARGET}[words], value)
            if command in PLAYED:
                await self._play(PLAYED[command])
            elif command.startswith("gang-extender "):
                printed += await asyncio.to_thread(self._ours, text)
            else:
                assert not command.startswith("kubectl"), f"neither run nor played: {command}"
                printed += await asyncio.to_thread(self.server.bash, text, self.backups.parent)
        return printed

    async def _play(self, what):
        service = self.world.service
        match what:
            case "stop":
                await asyncio.to_thread(service.stop)
            case "start":
                await asyncio.to_thread(service.start)
            case "ready":
                await self.world.until_ready()
                await eventually(self._is_published_again, "published again")
            case "save anchors":
                shutil.copy(service.data / "log-end.json", self.backups / "anchors.yaml")

    def _is_published_again(self):
        published = self.world.service.data / "log-end.json"
        return published.read_bytes() != (self.backups / "anchors.yaml").read_bytes()

    def _ours(self, text):
        words = text.replace(
            "gang_migrator:PASSWORD@HOST:5432/gang_extender",
            f"gang_migrator@/gang_extender?host={self.server.sockets}",
        )
        published = (
            self.world.service.data / "log-end.json"
        )  # of manifests, in place of the ConfigMap
        words = words.replace(" --anchors cluster", f" --anchors {published}")
        words = words.replace("gang-extender ", f"{' '.join(self.world.service.command())} ", 1)
        words = re.sub(r"(postgresql://\S+)", r"'\1'", words)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", words],
            cwd=ROOT, env=self.world.service.environ, check=False, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture
def operator(folder):  # noqa: F811 -- a fixture
    """A server as deploy/README.md prepares it, and the service on it."""
    place = folder / "server"
    place.mkdir(mode=0o755)
    with plain_server(place) as server:
        roles = (ROOT / "deploy" / "postgres" / "roles.sql").read_text()
        server.bash("createdb gang_extender", place)
        server.bash(
            f"psql -d gang_extender -v ON_ERROR_STOP=1 <<'SQL'\n{roles}\n{LOGINS}SQL", place
        )
        with a_world(folder, server.sockets) as world:
            made = Operator(server, world)
            made._ours(f"gang-extender db migrate --database-url {server.url('gang_migrator')}")
            yield made


@pytest.mark.full
async def test_a_dump_is_restored(operator):
    """The log ends where the dump does; what was lost is named before the start, and recorded after it."""
    dump, restore, look, begin = blocks(PAGE, "Dump and restore")
    world = operator.world
    player = await before_the_copy(world)
    try:
        await operator.follow(dump)
        lost = await after_the_copy(world, player)
        await _until_published(world, len(lost))
        await operator.follow(restore)
        before = await operator.follow(look)
        after = await operator.follow(begin)
        await all_ends_well(world, player, lost, "published")
    finally:
        await player.close()
    shown = blocks(PAGE, "Dump and restore", "text")
    place = str(world.service.data / "log-end.json")
    after = after.replace(place, "ConfigMap gang-extender/gang-extender-log")
    assert [re.sub(r"\d+", "N", text) for text in (before, after)] == [
        re.sub(r"\d+", "N", text) for text in shown
    ]


@pytest.mark.full
async def test_a_recovery_to_a_moment(operator):
    """While the service runs; then what CloudNativePG does on a recovered server changes nothing but a password."""
    archive, backup, recover, look = blocks(PAGE, "Base backup and point-in-time recovery")
    world, server = operator.world, operator.server
    await operator.follow(archive)
    await operator.follow(backup)
    player = await before_the_copy(world)
    try:
        moment = server.bash("psql -AtqXc 'SELECT clock_timestamp()' postgres", operator.backups)
        lost = await after_the_copy(world, player)
        await operator.follow(recover, target=moment.strip())
        await all_ends_well(world, player, lost, "memory")
        await operator.follow(look)
    finally:
        await player.close()
    for asked in ASKED_BY_CLOUDNATIVE_PG:
        assert server.bash(f'psql -AtqXc "{asked}" postgres', operator.backups) == "t\n"
    server.bash(
        f"psql -v ON_ERROR_STOP=1 postgres <<'SQL'\n{RUN_BY_CLOUDNATIVE_PG}SQL", operator.backups
    )
    operator._ours(f"gang-extender db migrate --database-url {server.url('gang_migrator')}")
    assert world.service.ready()


async def _until_published(world, position):
    await eventually(lambda: world.published() >= position, "published", state=world.published)
