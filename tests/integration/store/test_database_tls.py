"""URLs with TLS, as in deploy/kubernetes/cloudnative-pg: the certificate of the server is checked against a CA, and a server that wants TLS gets it."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from pathlib import Path
from urllib.parse import quote

import asyncpg
import pytest

from extender.core.model.errors import StoreUnavailable
from extender.store import schema_migration
from extender.store.schema_migration import excess_rights
from tests.support.certificates import certificate_folder
from tests.support.logs.postgres import execute, make_roles, running_postgres

SERVERS = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
pytestmark = [
    pytest.mark.postgres,
    pytest.mark.skipif(
        not SERVERS, reason="the embedded server is built without TLS, and no other one is here"
    ),
]
PATCH = (
    Path(__file__).parents[3] / "deploy" / "kubernetes" / "cloudnative-pg" / "extender-patch.yaml"
)
HBA = "local all all trust\nhostssl all all 127.0.0.0/8 scram-sha-256\n"
# The certificate has the first only.
ADDRESS = f"127.78.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"
OTHER_ADDRESS = ADDRESS.replace("127.78.", "127.79.")
LOGINS = {"service": "gx_writer", "migrator": "gx_owner"}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return certificate_folder(tmp_path_factory.mktemp("database"), names=[ADDRESS])


@pytest.fixture(scope="module", params=SERVERS, ids=lambda path: path.parent.name)
def server_url(request, certificates):
    """A server that can be reached by its address with TLS only."""
    with running_postgres(
        pg_bin=request.param, listen_addresses=f"{ADDRESS},{OTHER_ADDRESS}", access_rules=HBA
    ) as running:
        asyncio.run(prepare(running.url, certificates))
        yield running.url


async def prepare(url, certificates):
    """Switch TLS on, with files that the account of the server owns, and make the logins of the runbook."""
    await make_roles(url, url)
    connection = await asyncpg.connect(url)
    try:
        data = Path(await connection.fetchval("SHOW data_directory"))
        for name, source in {
            "server.crt": certificates.certificate("server"),
            "server.key": certificates.key("server"),
        }.items():
            shutil.copyfile(source, data / name)
            (data / name).chmod(0o600)
            os.chown(data / name, data.stat().st_uid, data.stat().st_gid)
        await connection.execute("ALTER SYSTEM SET ssl = on")
        await connection.execute("SELECT pg_reload_conf()")
    finally:
        await connection.close()
    for name, role in LOGINS.items():
        await execute(url, f"CREATE ROLE {name} LOGIN PASSWORD 'word' IN ROLE {role}")


def url_of(login, ca, server_url):
    """Return the URL of the patch for a login, with the address and the database of the test."""
    (form,) = set(re.findall(r'value: "(postgresql://.*)"', PATCH.read_text()))
    made = form.replace("$(DATABASE_USER)", login).replace("$(DATABASE_PASSWORD)", "word")
    made = made.replace("gang-extender-database-rw", ADDRESS)
    made = made.replace("/etc/gang-extender/database/ca.crt", quote(str(ca), safe=""))
    assert "sslmode=verify-full" in made
    assert "/gang_extender?" in server_url
    return made


async def test_migration_and_service_connect_with_the_ca_of_the_server(server_url, certificates):
    """With their passwords and encrypted; the service has no right too many."""
    ca = certificates.certificate("ca")
    await schema_migration.upgrade(url_of("migrator", ca, server_url))
    service = url_of("service", ca, server_url)
    assert await excess_rights(service) == []
    connection = await asyncpg.connect(service)
    try:
        query = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
        assert await connection.fetchval(query) is True
    finally:
        await connection.close()


async def test_another_ca_another_name_and_no_tls_are_refused(server_url, certificates, tmp_path):
    """`verify-full` trusts one CA and checks the name; without TLS the server refuses."""
    ca = certificates.certificate("ca")
    other = certificate_folder(tmp_path / "other").certificate("ca")
    good = url_of("service", ca, server_url)
    for url, words in {
        url_of("service", other, server_url): "certificate verify failed",
        good.replace(ADDRESS, OTHER_ADDRESS): "IP address mismatch",
        good.replace("verify-full", "disable"): "no encryption",
    }.items():
        with pytest.raises(StoreUnavailable) as refused:
            await excess_rights(url)
        assert words in str(refused.value)
