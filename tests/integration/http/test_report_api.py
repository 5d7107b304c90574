"""Reports by HTTP and by command: the same rows, clear refusals, and nothing that is asked for becomes part of the question."""

from __future__ import annotations

import json

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from typer.testing import CliRunner

from extender.cli.main import app as program
from extender.core.model.errors import BadInput
from extender.http.responses.json_responses import problems
from extender.http.v1.history_api import ReportApi
from extender.queries.log.parameter_validation import NAME_MAX
from extender.queries.log.reports import (
    DAY_US,
    LIMIT,
    LIVE_REPORTS,
    REPORTS,
    ReportQuery,
    check_report_query,
    report,
)
from extender.runtime.system_clock import SystemClock
from extender.store.queries.event_queries import PostgresEventQueries, reading_pool
from extender.store.queries.report_queries import PostgresReportQueries
from tests.support.hypothesis_profile import daily
from tests.support.logs.example_log import BATCH, TRAIN, at, tuesday, write_tuesday
from tests.support.logs.fake_store import FakeDatabase, FakeEventLog, FakeEventQueries
from tests.support.logs.postgres import fresh_database, run
from tests.support.logs.reference_reports import FakeReportQueries

DAY = {"since": "2026-11-17T00:00:00Z", "until": "2026-11-18T00:00:00+00:00"}
HOSTILE = (  # the first five in each run
    "'; DROP TABLE gx.event; --", "{where}", "%", "\u2603" * 253, "x" * 4000,
    "a/b/c", "'", "' OR true --", '"', "\\", "_", "$1", ":namespace", "NULL", "\n",
)  # fmt: skip


@pytest.fixture(scope="module")
def tuesday_url(postgres_url, template_database):
    with fresh_database(postgres_url, template=template_database) as url:
        run(write_tuesday(url))
        yield url


@pytest.fixture
async def served(tuesday_url):
    engine = reading_pool(tuesday_url)
    app = web.Application(middlewares=[problems])
    app.add_routes(
        ReportApi(
            PostgresReportQueries(engine), PostgresEventQueries(engine), SystemClock()
        ).routes()
    )
    async with TestClient(TestServer(app)) as client:
        yield client
    await engine.close()


async def get(client, path, **parameters):
    answer = await client.get(path, params=parameters)
    return answer.status, await answer.json(content_type=None), answer


@pytest.mark.postgres
async def test_every_report_is_served_with_its_columns(served, tuesday_url):
    """The same rows as from a fake that computes them plainly, in the same shape; the position is that of the log."""
    database = FakeDatabase()
    log = FakeEventLog(database)
    grant = await log.take(holder="a", address="", ttl_ms=60_000)
    await log.append(grant, tuesday(grant))
    status, listed, _ = await get(served, "/v1/reports")
    assert status == 200
    assert [line["name"] for line in listed] == list(REPORTS)
    assert all(line["description"].endswith(".") and line["limitations"] for line in listed)
    for name, kind in REPORTS.items():
        status, found, answer = await get(served, f"/v1/reports/{name}", **DAY)
        assert status == 200, found
        assert answer.headers["X-Log-Position"] == str(found["position"]) == "35"
        assert found["rows"], name
        assert all(list(row) == list(kind.columns) for row in found["rows"])
        asked = check_report_query(
            name,
            now_us=SystemClock().now_us(),
            since_us=at("00:00:00"),
            until_us=at("00:00:00") + DAY_US,
        )
        plain = json.loads(
            msgspec.json.encode(
                await report(FakeReportQueries(database), FakeEventQueries(database), asked)
            )
        )
        by_text = lambda rows: sorted(map(str, rows))
        assert by_text(found.pop("rows")) == by_text(plain.pop("rows")), name
        assert found == plain


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("path", "parameters", "status", "words"),
    [
        ("/v1/reports/nothing", {}, 404, ["'nothing'", "pending, pending-namespaces"]),
        ("/v1/reports", {"x": "1"}, 400, ["query parameter x"]),
        ("/v1/reports/pending", {"node": "n1"}, 400, ["query parameter node", "since"]),
        ("/v1/reports/pending", {"since": "yesterday"}, 400, ["since", "'yesterday'"]),
        ("/v1/reports/pending", {"until": "2026-11-17T08:00:00"}, 400, ["until", "offset"]),
        ("/v1/reports/pending", {"since": DAY["until"], "until": DAY["since"]}, 400, ["is after until", "since"]),
        ("/v1/reports/pending", {"since": "2999-01-01T00:00:00Z"}, 400, ["is after until", "2999"]),
        ("/v1/reports/largest-free", {"namespace": "team-a"}, 400, ["namespace", "'team-a'", "whole cluster"]),
        ("/v1/reports/largest-free", {"gang": "team-a/train"}, 400, ["gang", "'team-a/train'"]),
        ("/v1/reports/terminations", {"gang": "a/b/c"}, 400, ["gang", "'b/c'", "no slash"]),
        ("/v1/reports/terminations", {"gang": "absent"}, 404, ["gang default/absent", "no such root group", "gang-extender events"]),
        ("/v1/reports/terminations", {"limit": "10001"}, 400, ["limit", "10000"]),
        ("/v1/reports/terminations", {"limit": "-1"}, 400, ["limit", "'-1'"]),
        ("/v1/reports/terminations", {"namespace": "a\0b"}, 400, ["namespace", "NUL"]),
    ],
)  # fmt: skip
async def test_a_bad_question_is_refused_by_name(served, path, parameters, status, words):
    """Field and value are in the answer, and what would be right."""
    found, body, answer = await get(served, path, **parameters)
    assert found == status
    assert answer.content_type == "application/problem+json"
    for word in words:
        assert word in body["detail"], body


async def test_a_span_may_have_no_length(served):
    """Since and until are the same: what was the case then, for no time."""
    at = DAY["until"]
    for name in REPORTS:
        status, body, _ = await get(served, f"/v1/reports/{name}", since=at, until=at)
        assert status == 200, (name, body)
        assert all(row.get("seconds", 0.0) == 0.0 for row in body["rows"]), name


def could_be_a_name(text):
    return "/" not in text and len(text) <= NAME_MAX


@pytest.mark.postgres
@pytest.mark.parametrize("text", daily(5, HOSTILE))
async def test_what_is_asked_for_is_never_part_of_the_question(served, text):
    """In every parameter of every report: nothing matches, or it is refused; the log is as it was."""
    for name, kind in REPORTS.items():
        for field in ("namespace", "gang", "since", "until", "limit", "x"):
            given = DAY | {field: f"a/{text}" if field == "gang" else text}
            status, body, _ = await get(served, f"/v1/reports/{name}", **given)
            if kind.of_gangs and field == "gang" and could_be_a_name(text):
                assert (status, "no such root group" in body["detail"]) == (404, True), body
            elif kind.of_gangs and field == "namespace" and could_be_a_name(text):
                assert (status, "the log has no gang in it" in body["detail"]) == (404, True), body
            else:
                assert status == 400, (name, field, body)
    status, _, answer = await get(served, "/v1/reports/decisions", **DAY)
    assert (status, answer.headers["X-Log-Position"]) == (200, "35")


@pytest.mark.postgres
async def test_a_name_narrows_it_down(served):
    """By namespace and by gang; pairs of preemptions are found from either side."""
    for name in (
        "pending",
        "reserved",
        "decisions",
        "terminations",
        "largest-free-used",
        "queue-bypass",
    ):
        for field, value in (("namespace", "team-a"), ("gang", TRAIN)):
            _, found, _ = await get(served, f"/v1/reports/{name}", **DAY, **{field: value})
            assert {row.get("gang", TRAIN) for row in found["rows"]} <= {TRAIN}
    for field, value in (
        ("namespace", "team-a"),
        ("namespace", "team-b"),
        ("gang", TRAIN),
        ("gang", BATCH),
    ):
        _, found, _ = await get(served, "/v1/reports/preemption-pairs", **DAY, **{field: value})
        assert [row["preemptor"] for row in found["rows"]] == [TRAIN]


@pytest.mark.postgres
async def test_more_rows_than_the_limit_are_reported(served):
    """`more` reports that the limit cut something off."""
    _, found, _ = await get(served, "/v1/reports/pending", **DAY, limit="2")
    assert (len(found["rows"]), found["more"]) == (2, True)
    _, found, _ = await get(served, "/v1/reports/terminations", **DAY, limit="2")
    assert (len(found["rows"]), found["more"]) == (2, False)


def test_without_times_it_is_the_last_day():
    """And a span that reaches into the future ends now."""
    now_us = at("12:00:00")
    assert check_report_query("terminations", now_us=now_us) == ReportQuery(
        name="terminations", since_us=now_us - DAY_US, until_us=now_us, limit=LIMIT
    )
    assert check_report_query("terminations", now_us=now_us, until_us=now_us + 5).until_us == now_us
    with pytest.raises(BadInput, match="is not Unicode text"):
        check_report_query("terminations", now_us=now_us, namespace="\udcff")


def ask(*words):
    done = CliRunner().invoke(program, ["report", *words])
    return done.exit_code, done.stdout, done.exception


@pytest.mark.postgres
def test_the_command_gives_programs_what_http_gives(tuesday_url):
    """JSON and YAML have the fields of /v1; the table is for people."""
    span = ("--since", DAY["since"], "--until", DAY["until"], "--database-url", tuesday_url)
    code, text, _ = ask("terminations", *span, "-o", "json")
    found = json.loads(text)
    assert (code, found["report"], found["position"], len(found["rows"])) == (
        0,
        "terminations",
        35,
        2,
    )
    assert found["rows"][0]["preemptor"] == TRAIN
    code, text, _ = ask("terminations", *span, "-o", "yaml")
    assert code == 0
    assert msgspec.yaml.decode(text) == found
    code, text, error = ask("terminations", "-n", "absent", *span)
    assert (code, text) == (1, "")
    assert "namespace absent: the log has no gang in it" in str(error)
    code, text, _ = ask("pending", "--gang", "train", "-n", "team-a", "--limit", "1", *span)
    assert code == 0
    assert " 18m " in text
    assert "more than these 1 rows" in text


def test_without_a_name_the_reports_are_listed():
    """In every form."""
    code, text, _ = ask()
    assert code == 0
    assert all(name in text for name in REPORTS)
    code, text, _ = ask("-o", "json")
    assert [line["name"] for line in json.loads(text)] == [*REPORTS, *LIVE_REPORTS]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["nothing"], "'nothing'"),
        (["largest-free", "-n", "a"], "whole cluster"),
        (["terminations", "--since", "noon"], "--since: 'noon'"),
        (
            ["terminations", "--since", "2026-11-17T00:00:00Z", "--until", "2026-11-16T00:00:00Z"],
            "empty",
        ),
    ],
)
def test_bad_input_is_refused_before_the_database_is_looked_for(words, expected):
    """`main` turns it into exit 2 with the message on stderr, and nothing stands on stdout."""
    code, text, error = ask(*words)
    assert code != 0
    assert text == ""
    assert isinstance(error, BadInput)
    assert expected in str(error)
