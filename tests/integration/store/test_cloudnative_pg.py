"""What the operator of CloudNativePG does with deploy/kubernetes/cloudnative-pg, done by hand in its order, is a database that the service can use."""

from __future__ import annotations

from pathlib import Path

import asyncpg
import pytest
import yaml

from extender.store import schema_migration
from extender.store.schema_migration import excess_rights
from tests.support.logs.postgres import database_of, execute, running_postgres

pytestmark = pytest.mark.postgres
FOLDER = Path(__file__).parents[3] / "deploy" / "kubernetes" / "cloudnative-pg"


def document(name):
    (found,) = yaml.safe_load_all((FOLDER / name).read_text())
    return found


def login(role):
    """Return the name of a role here: the superuser of the embedded server has that of the service."""
    return f"cluster_{role}"


@pytest.fixture
def server_url():
    """A server of its own: roles with the names of the Cluster would be seen by other tests."""
    with running_postgres() as server:
        yield server.url


def becoming(monkeypatch, role):
    """Let every connection that is opened from here on belong to a role."""
    real = asyncpg.connect

    async def connect(*args, **kwargs):
        connection = await real(*args, **kwargs)
        await connection.execute(f"SET SESSION AUTHORIZATION {role}")
        return connection

    monkeypatch.setattr(asyncpg, "connect", connect)


async def test_what_initdb_and_the_managed_roles_make_is_enough(server_url, monkeypatch):
    """Owner and database, the SQL of the ConfigMap as superuser in it, then the roles; the migrator migrates, the service has no right too many."""
    cluster, sql = document("cluster.yaml")["spec"], document("roles.yaml")
    initdb = cluster["bootstrap"]["initdb"]
    (reference,) = initdb["postInitApplicationSQLRefs"]["configMapRefs"]
    assert reference["name"] == sql["metadata"]["name"]
    script = sql["data"][reference["key"]]
    assert script == (FOLDER.parents[1] / "postgres" / "roles.sql").read_text()
    await execute(
        server_url,
        f"CREATE ROLE {login(initdb['owner'])} LOGIN",
        f"CREATE DATABASE cluster_database OWNER {login(initdb['owner'])}",
    )
    url = database_of(server_url, "cluster_database")
    await execute(url, script)
    service, migrator = cluster["managed"]["roles"]
    assert migrator["name"] == initdb["owner"]
    for role in (service, migrator):
        assert role["login"] is True
        await execute(
            url,
            f"DO $$ BEGIN CREATE ROLE {login(role['name'])} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$",
            f"GRANT {', '.join(role['inRoles'])} TO {login(role['name'])}",
        )
    with monkeypatch.context() as patch:
        becoming(patch, login(migrator["name"]))
        await schema_migration.upgrade(url)
    with monkeypatch.context() as patch:
        becoming(patch, login(service["name"]))
        await execute(url, "SELECT count(*) FROM gx.event")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await execute(url, "DELETE FROM gx.event")
        assert await excess_rights(url) == []
