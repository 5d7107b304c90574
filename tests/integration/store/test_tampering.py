"""Each of the ways to tamper with a log is found: offline, in a running service, and after a restart."""

from __future__ import annotations

import copy
import itertools
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import get_args

import asyncpg
import pytest
from sqlalchemy import make_url

from extender.control.monitors.log_verifier import LogVerifier
from extender.core.log.events import DriftDetected, HistoryTruncated
from extender.core.log.tampering import ADVICE, TamperKind
from extender.core.model.errors import CorruptLog, NotLeading, StoreUnavailable
from extender.core.model.ids import Position
from extender.queries.verification.log_verification import LogVerification
from extender.runtime.log_keys import NO_KEYS
from extender.runtime.system_clock import SystemClock
from extender.runtime.worker_process import WorkerProcess
from extender.store import schema_migration
from extender.store.connections import plain_url
from extender.store.decision_inputs import prune
from extender.store.embedded.os_account import wheel_folder
from extender.store.log.postgres_event_log import PostgresEventLog
from extender.store.log_evidence import PostgresLogEvidence
from extender.store.schema_definitions import read_definitions, read_privileged_roles
from extender.verification_worker import verify_slice
from tests.integration.store.test_embedded import program
from tests.integration.store.test_rewritten_log import replica
from tests.support.hypothesis_profile import daily
from tests.support.logs.postgres import execute, fresh_database, run
from tests.support.logs.tampered_log import HOLDER, NOT_FOUND, TAMPERINGS, VARIANTS, FilledLog
from tests.support.logs.tampering import rewrite, tamper
from tests.support.service.fakes import FakeCluster
from tests.support.waiting import eventually

pytestmark = pytest.mark.postgres
POSITIONS = {"edited-row": 9, "hole": 9, "forged-snapshot": 10, "other-database": 1, "rewritten": 6}

# What a leader compares before it goes on; all else is found by a pass like any other.
AT_THE_START = ("tail-deleted", "log-truncated", "other-database", "older-copy", "forged-epoch")
# What a running service finds in each run: with a position and without, in anchors and at its own head.
RUNNING = ("edited-row", "forged-definition", "forged-anchor", "tail-deleted")


@pytest.fixture(scope="module")
def filled_once(postgres_url, template_database):
    """A log of which each test has a copy."""
    with fresh_database(postgres_url, template=template_database) as url:
        yield run(FilledLog(url).fill())


@pytest.fixture
def filled(filled_once, postgres_url):
    with fresh_database(postgres_url, template=make_url(filled_once.url).database) as url:
        log = copy.copy(filled_once)
        log.url = url
        yield log


async def verified(log, *, keys=None, anchors=None, step=7):
    """Return the verdict of a whole pass."""
    keys = log.keys if keys is None else keys
    evidence = PostgresLogEvidence(log.url, keys)
    async with PostgresEventLog(log.url) as events:
        anchors = log.anchors if anchors is None else anchors
        work = LogVerification(events, evidence, anchors, keys)
        while await work.step(step):
            pass
    await evidence.close()
    return work.verdict


def first(kinds):
    """Return all kinds, those that are not given marked `full`."""
    return daily(len(kinds), [*kinds, *(kind for kind in TAMPERINGS if kind not in kinds)])


def test_every_kind_has_a_way_and_an_advice():
    assert set(TAMPERINGS) == set(ADVICE) == set(get_args(TamperKind))


@pytest.mark.parametrize("step", [1, 7, 100_000])
async def test_an_untouched_log_verifies(filled, step):
    """In whatever steps: nothing is found, and everything was compared."""
    verdict = await verified(filled, step=step)
    assert verdict.findings == ()
    assert verdict.position == (await filled.head()).position
    assert (verdict.anchors, verdict.unsigned) == (3, 0)


async def test_pruned_inputs_are_not_missing(filled):
    """`db prune` records before which time it removed inputs; the input of a later decision would be missing."""
    pruned = await prune(filled.url, datetime.now(UTC) + timedelta(minutes=1))
    assert pruned.inputs == 1
    assert (await verified(filled)).findings == ()
    await tamper(filled.url, "UPDATE gx.pruning SET before_us = 1000")
    findings = (await verified(filled)).findings
    assert [(finding.kind, finding.position) for finding in findings] == [
        ("missing-input", filled.decision)
    ]


@pytest.fixture
def restored_url(postgres_url):
    """An empty database."""
    with fresh_database(postgres_url) as url:
        yield url


async def test_a_dump_without_comments_keeps_what_was_pruned(filled, restored_url, tmp_path):
    """And the revision from which on programs run on its schema."""
    await prune(filled.url, datetime.now(UTC) + timedelta(minutes=1))
    newest = schema_migration.newest_revision()
    await execute(filled.url, "UPDATE gx.migration SET version_num = '9999'")
    programs, dump = wheel_folder(), tmp_path / "log.dump"
    options = ("--format=custom", "--no-comments", "--schema=gx", f"--file={dump}")
    program(programs / "pg_dump", *options, f"--dbname={plain_url(filled.url)}")
    program(programs / "pg_restore", "--exit-on-error", f"--dbname={plain_url(restored_url)}", dump)
    assert not await schema_migration.needs_migration(restored_url)
    await execute(restored_url, f"UPDATE gx.migration SET version_num = '{newest}'")
    filled.url = restored_url
    verdict = await verified(filled)
    assert verdict.findings == ()
    assert verdict.definitions > 40


async def test_inputs_that_are_pruned_during_a_pass_are_not_missing(filled):
    evidence = PostgresLogEvidence(filled.url, filled.keys)
    async with PostgresEventLog(filled.url) as events:
        work = LogVerification(events, evidence, filled.anchors, filled.keys)
        assert await work.step(1)
        await prune(filled.url, datetime.now(UTC) + timedelta(minutes=1))
        while await work.step(100):
            pass
    await evidence.close()
    assert work.verdict.findings == ()


@pytest.mark.parametrize("kind", TAMPERINGS)
async def test_offline_verification_finds_it(filled, kind):
    """Against the published anchors: kind, position, and what to do."""
    await TAMPERINGS[kind](filled)
    findings = (await verified(filled)).findings
    assert [finding.kind for finding in findings] == [kind]
    (found,) = findings
    assert found.advice == ADVICE[kind]
    if kind in POSITIONS:
        assert found.position == POSITIONS[kind]
    if kind in ("missing-input", "forged-input"):
        assert found.position == filled.decision


@pytest.mark.parametrize("way", daily(12, [*VARIANTS][::3] + [*VARIANTS][1::3] + [*VARIANTS][2::3]))
async def test_offline_verification_finds_it_however_it_is_done(filled, way):
    """Kind, what was changed, and that the database is to be kept; nothing else is found."""
    kind, word, change = VARIANTS[way]
    await change(filled)
    findings = (await verified(filled)).findings
    assert {finding.kind for finding in findings} == {kind}
    assert any(word in finding.text for finding in findings), [one.text for one in findings]
    assert all(
        finding.advice.startswith("keep this database, copy it first") for finding in findings
    )


@pytest.mark.parametrize("kind", daily(4, sorted(set(TAMPERINGS) - {"forged-anchor"})))
async def test_it_is_found_without_keys_too(filled, kind):
    """Anchors are then believed as they are; a forged one looks like a log that was rewritten."""
    await TAMPERINGS[kind](filled)
    verdict = await verified(filled, keys=NO_KEYS)
    assert [finding.kind for finding in verdict.findings] == [kind]
    assert verdict.unsigned == 3


async def test_a_forged_anchor_is_never_silent(filled):
    """Without keys it looks like a rewritten log, and is reported as that."""
    await TAMPERINGS["forged-anchor"](filled)
    verdict = await verified(filled, keys=NO_KEYS)
    assert [finding.kind for finding in verdict.findings] == ["rewritten"]


@pytest.mark.parametrize(
    ("statements", "names"),
    [
        (("GRANT gx_owner TO gx_auditor",), ["membership in gx_owner of gx_auditor"]),
        (("CREATE ROLE gx_between IN ROLE gx_owner", "GRANT gx_between TO gx_writer"), ["membership in gx_owner of gx_writer"]),
        (("GRANT gx_writer TO gx_auditor",), ["membership in gx_writer of gx_auditor"]),
        (("GRANT pg_write_all_data TO gx_auditor",), ["membership in pg_write_all_data of gx_auditor"]),
        (("ALTER ROLE gx_writer SUPERUSER",), ["right of a superuser of gx_writer"]),
        (("CREATE ROLE gx_alice LOGIN IN ROLE gx_owner, gx_auditor",), []),
        (("GRANT pg_monitor TO gx_auditor",), []),
    ],
)  # fmt: skip
async def test_what_roles_can_act_as_is_compared(filled, statements, names):
    """Roles are those of the whole server, so they are changed in a transaction that is undone."""
    connection = await asyncpg.connect(plain_url(filled.url))
    change = connection.transaction()
    await change.start()
    try:
        for statement in statements:
            await connection.execute(statement)
        definitions = await read_definitions(connection)
        assert [one.name for one in definitions if one.stored != one.expected] == names
    finally:
        await change.rollback()
        await connection.close()


async def test_login_roles_that_can_change_the_log_are_named(filled):
    """Members of the owner by any number of steps, superusers and writers of all data; not those that only read."""
    connection = await asyncpg.connect(plain_url(filled.url))
    change = connection.transaction()
    await change.start()
    try:
        before = await read_privileged_roles(connection)
        for statement in (
            "CREATE ROLE gx_alice LOGIN IN ROLE gx_owner",
            "CREATE ROLE gx_between IN ROLE gx_owner",
            "CREATE ROLE gx_bob LOGIN IN ROLE gx_between, pg_write_all_data",
            "CREATE ROLE gx_carol LOGIN SUPERUSER",
            "CREATE ROLE gx_dave LOGIN IN ROLE gx_auditor, gx_writer, pg_read_all_data",
        ):
            await connection.execute(statement)
        added = set(await read_privileged_roles(connection)) - set(before)
        assert added == {
            "gx_alice (member of gx_owner)",
            "gx_bob (member of gx_owner, member of pg_write_all_data)",
            "gx_carol (superuser)",
        }
    finally:
        await change.rollback()
        await connection.close()
    assert (await verified(filled)).privileged_roles == tuple(before) != ()


async def test_a_schema_of_another_version_is_not_compared(filled):
    """Neither is that silent."""
    await execute(filled.url, "UPDATE gx.migration SET version_num = '9999'")
    verdict = await verified(filled)
    assert (verdict.findings, verdict.definitions) == ((), 0)


async def test_what_follows_from_a_rewritten_log_is_counted_and_not_listed(filled):
    """One finding has the number; what is before its position does not follow from it, and is listed."""
    await TAMPERINGS["rewritten"](filled)
    await tamper(
        filled.url,
        "UPDATE gx.placement SET node = 'elsewhere' WHERE from_position >= 6",
        "INSERT INTO gx.event_reference VALUES ('node', 'n', 3), ('node', 'n', 8), ('node', 'n', 9)",
    )
    first, second = (await verified(filled)).findings
    assert (first.kind, first.position) == ("rewritten", 6)
    assert first.weaker["forged-reference"] == 2
    assert first.weaker["forged-projection"] > 5
    number = sum(first.weaker.values())
    assert f"{number} weaker findings follow from it or cannot be separated from it" in first.text
    assert first.text.index("keep this database") > 0
    assert (second.kind, second.position) == ("forged-reference", 3)


@pytest.mark.parametrize("way", daily(4, [*NOT_FOUND]))
async def test_what_is_not_found(filled, way):
    """As docs/security.md lists it, row by row."""
    await NOT_FOUND[way](filled)
    assert (await verified(filled)).findings == ()
    rows = (Path(__file__).parents[3] / "docs" / "security.md").read_text().split("\n| ")
    assert any(f"`test_what_is_not_found` ({way})" in row for row in rows)


# Another value of a column, by its type
OTHER = {
    "bigint": "coalesce({0}, 0) + 900000", "integer": "coalesce({0}, 0) + 1000", "smallint": "{0} + 1", "text": "coalesce({0}, '') || 'x'",
    "bytea": "coalesce({0}, '') || '\\x00'::bytea", "uuid": "gen_random_uuid()", "boolean": "NOT coalesce({0}, false)",
    "timestamp with time zone": "{0} + interval '1 h'", "json": "'{{\"x\": 1}}'", "jsonb": "'{{\"x\": 1}}'",
    "text[]": "coalesce({0}, '{{}}') || 'x'::text",
}  # fmt: skip
# Tables of evidence, with the columns of which a change is not found (docs/security.md) or refused by the database
COLUMNS = {
    "decision_input": {"saved_at"},
    "decision_input_chunk": {"id"},
    "event": set[str](),
    "event_reference": set[str](),
    "gang_state": set[str](),
    "placement": set[str](),
    "preemption": set[str](),
    "projection": {"id", "at_us", "projected_at"},
    "snapshot": {"position", "codec", "chain", "saved_at"},
    "victim": set[str](),
}


@pytest.mark.parametrize(
    "table", daily(1, ["event_reference", *sorted(COLUMNS.keys() - {"event_reference"})])
)
async def test_a_change_of_any_column_is_found(filled, table):
    """In the first row, and in the last one, where it lasts: each column by itself, then put back."""
    connection = await asyncpg.connect(plain_url(filled.url))
    await connection.execute("SET session_replication_role = replica")
    checks = await connection.fetch(
        "SELECT conname FROM pg_constraint WHERE conrelid = $1::text::regclass AND contype = 'c'",
        f"gx.{table}",
    )
    for (check,) in checks:
        await connection.execute(f"ALTER TABLE gx.{table} DROP CONSTRAINT {check}")
    columns = await connection.fetch(
        "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute "
        "WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        f"gx.{table}",
    )
    names, missed = ", ".join(name for name, _ in columns), []
    for (name, kind), end in itertools.product(columns, ("min", "max")):
        if name in COLUMNS[table]:
            continue
        row = f"ctid = (SELECT {end}(ctid) FROM gx.{table})"
        change = f"{name} = {OTHER[kind].format(name)}"
        await connection.execute(
            f"CREATE TEMP TABLE kept AS SELECT {names} FROM gx.{table} WHERE {row}"
        )
        changed = await connection.fetchval(
            f"UPDATE gx.{table} SET {change} WHERE {row} RETURNING ctid"
        )
        if not (await verified(filled, step=1000)).findings:
            missed.append((name, end))
        for statement in (
            f"DELETE FROM gx.{table} WHERE ctid = '{changed}'",
            f"INSERT INTO gx.{table} ({names}) OVERRIDING SYSTEM VALUE SELECT {names} FROM kept",
            "DROP TABLE kept",
        ):
            await connection.execute(statement)
    await connection.close()
    assert not missed
    assert (await verified(filled)).findings == ()


async def test_a_change_after_the_last_anchor_is_not_found(filled):
    """While no leader runs and all hashes behind it are computed again."""
    await rewrite(filled.url, filled.decision)
    first, *_ = filled.anchors
    assert first.position < filled.decision
    assert (await verified(filled, anchors=(first,))).findings == ()


@pytest.fixture(scope="module")
def worker():
    process = WorkerProcess()
    yield process
    process.stop()


class Watched:
    """A leader on a filled log, with the verification as the service has it: in a process of its own."""

    def __init__(self, log, cluster, made, worker, key_file):
        self.made = made

        async def verify_next(anchors, most):
            return await worker.run(verify_slice, log.url, key_file, anchors, most)

        self.verifier = LogVerifier(made.leader, cluster, verify_next, SystemClock())

    async def reports(self):
        """Verify once, and return what the log then has about tampering, as texts with kind, position and advice."""
        await eventually(self.made.leads, "leading")
        try:
            while await self.verifier.look():
                pass
        except (NotLeading, StoreUnavailable, CorruptLog):
            return []  # as the service: the next pass begins again
        found = [
            event.data
            async for page in self.made.log.read()
            for event in page
            if isinstance(event.data, DriftDetected | HistoryTruncated)
        ]
        return [
            one.message
            if isinstance(one, HistoryTruncated)
            else f"{one.kind} at {one.object}: {one.message}"
            for one in found
        ]

    async def finds(self, kind, word=""):
        """Verify until something about this kind of tampering is recorded, with a word and with what to do."""

        async def look():
            for text in [] if self.made.leader.draining else await self.reports_or_nothing():
                place = "gx." if kind == "forged-definition" else "position"
                if text.startswith(kind) and all(
                    part in text for part in (ADVICE[kind], place, word)
                ):
                    return text
            return None

        return await eventually(look, f"a report of {kind}")

    async def reports_or_nothing(self):
        """As `reports`; of a log that cannot be read to its end, what the metrics show."""
        try:
            return await self.reports()
        except CorruptLog:
            newest = await newest_events(self.made.log)
            return [
                f"{one.kind} at {one.object}: {one.message}"
                for one in newest
                if isinstance(one, DriftDetected)
            ]


async def newest_events(log):
    """Return the data of the last events, without verifying those before them."""
    end = (await log.head()).position
    return [
        event.data async for page in log.read(after=Position(max(0, end - 3))) for event in page
    ]


@asynccontextmanager
async def watched(log, cluster, worker, key_file):
    async with replica(log.url, cluster, HOLDER, log.keys) as made:
        await eventually(made.leads, "leading")
        yield Watched(log, cluster, made, worker, str(key_file))


@pytest.fixture
def key_file(filled, tmp_path):
    path = tmp_path / "anchor.key"
    path.write_bytes(filled.key)
    return path


async def tampered(filled, cluster, kind):
    """Tamper with the log, and with what is published."""
    filled.anchors = cluster.anchors
    await TAMPERINGS[kind](filled)
    cluster.anchors = filled.anchors


@pytest.mark.parametrize("kind", first(RUNNING))
async def test_a_running_service_finds_it(filled, worker, key_file, kind):
    """Within a minute, recorded in the log, with kind, position and advice."""
    cluster = FakeCluster()
    cluster.anchors = filled.anchors
    async with watched(filled, cluster, worker, key_file) as service:
        assert await service.reports() == []
        await service.made.publisher.publish()
        await tampered(filled, cluster, kind)
        assert kind in await service.finds(kind)


@pytest.mark.full  # what it compares is what the offline verification compares
@pytest.mark.parametrize("way", VARIANTS)
async def test_a_running_service_finds_it_however_it_is_done(filled, worker, key_file, way):
    kind, word, change = VARIANTS[way]
    cluster = FakeCluster()
    cluster.anchors = filled.anchors
    async with watched(filled, cluster, worker, key_file) as service:
        assert await service.reports() == []
        await change(filled)
        assert await service.finds(kind, word)


@pytest.mark.parametrize("kind", first(AT_THE_START))
async def test_a_service_that_starts_finds_it(filled, worker, key_file, kind):
    """It was changed while no service ran."""
    cluster = FakeCluster()
    cluster.anchors = filled.anchors
    async with watched(filled, cluster, worker, key_file) as service:
        await service.made.publisher.publish()
    await tampered(filled, cluster, kind)
    async with watched(filled, cluster, worker, key_file) as service:
        assert kind in await service.finds(kind)
