"""The contract of /v1, tried by schemathesis against the real service on a real database with a history.

Every operation of the document gets values that fit it and values that do not: no 5xx ever, every answer is of
a status, a type and a schema that the document names, and what does not fit is refused.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from urllib.parse import quote

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings

from tests.support.service.command_line import run_command
from tests.support.service.manifest_builders import RACK, a_fleet, a_gang

pytestmark = pytest.mark.postgres
# What else a question must be is not in the schema: which moments there are, spans that do not end before they begin
# (and, of objects sent to /v1/plan, to be of Kubernetes).
OF_THE_LOG = {"/v1/explain", "/v1/state", "/v1/nodes/{name}", "/v1/reports/{name}"}
# aiohttp itself refuses a request line of 8,190 bytes, and a proxy before it one of less
LINE_MAX = 6_000
UNICODE = "gäng-日本-" + "x" * 240


def get(service, path):
    with urllib.request.urlopen(service.url + path) as reply:
        return reply.status, dict(reply.headers), json.load(reply)


def checks_of(mode):
    """Return the checks that every answer has to pass, and those of this mode with them."""
    from schemathesis.checks import load_all_checks, not_a_server_error
    from schemathesis.specs.openapi import checks as conforming

    load_all_checks()
    checks = [
        not_a_server_error,
        conforming.status_code_conformance,
        conforming.content_type_conformance,
        conforming.response_schema_conformance,
        conforming.response_headers_conformance,
    ]
    extra = {
        "positive": conforming.positive_data_acceptance,
        "negative": conforming.negative_data_rejection,
    }
    return checks, [*checks, extra[mode]]


def operations_of(service):
    import schemathesis  # slow to import, and most runs of pytest do not need it

    schema = schemathesis.openapi.from_url(f"{service.url}/v1/openapi.json")
    return [found.ok() for found in schema.get_all_operations()]


def try_out(operation, mode, examples):
    """Call an operation that many times; return how often it was called."""
    from schemathesis import GenerationMode

    asked = []
    always, of_mode = checks_of(mode)

    @given(case=operation.as_strategy(generation_mode=GenerationMode(mode)))
    @settings(
        max_examples=examples,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=True,
        database=None,
    )
    def ask(case):
        query = dict(case.query or {})
        checks = of_mode
        if mode == "positive" and (case.method == "POST" or case.path in OF_THE_LOG):
            checks = always
        if query.pop("follow", False) is not False:  # a stream has no end: see test_event_stream
            case.query, checks = query, always
        asked.append(case)
        if len(quote(str(query))) > LINE_MAX:
            return
        case.call_and_validate(checks=checks)

    ask()
    return len(asked)


@pytest.mark.parametrize("examples", [2, pytest.param(25, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    # wrong requests are also those of test_fuzzed_requests
    "mode",
    ["positive", pytest.param("negative", marks=pytest.mark.full)],
)
def test_every_answer_conforms(service, mode, examples):
    """Whatever is asked: no 5xx, and nothing that is not in the document."""
    for operation in operations_of(service):
        asks = any(p.location.value == "query" for p in operation.iter_parameters())
        if mode == "negative" and not asks and operation.method != "post":
            continue  # a path segment is a text, whatever it is
        assert try_out(operation, mode, examples) > 0


@pytest.mark.parametrize("examples", [3, pytest.param(40, marks=pytest.mark.full)])
def test_answers_lead_to_further_questions(service, examples):
    """Operations in series, with values of earlier answers where the document links them."""
    import schemathesis

    always, _ = checks_of("positive")
    schema = schemathesis.openapi.from_url(f"{service.url}/v1/openapi.json")
    machine = schema.as_state_machine()
    calls = []

    class Series(machine):
        def before_call(self, case):
            (case.query or {}).pop("follow", None)  # a stream has no end
            calls.append(case.path)

        def validate_response(self, response, case, **_):
            case.validate_response(response, checks=always)

    Series.run(
        settings=settings(
            max_examples=examples,
            stateful_step_count=8,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=True,
            database=None,
        )
    )
    assert len({*calls}) > 3, calls


def test_methods_that_a_path_does_not_have_are_named(service):
    """405 with Allow, for TRACE as well (RFC 9110, 15.5.6)."""
    for path in ("/v1/gangs", "/v1/events", "/readyz", "/ui/index.html", "/scheduler/filter"):
        for method in ("TRACE", "DELETE", "PATCH"):
            asked = urllib.request.Request(service.url + path, method=method)
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(asked)
            with caught.value as answer:
                assert (answer.code, bool(answer.headers["Allow"])) == (405, True), path


def test_a_budget_may_be_written_with_a_fraction_of_zero(service):
    """415.0 is an integer for JSON Schema."""
    cluster = a_fleet("1 racks x 1 nodes", gpu=2)
    whole = {"cluster": cluster, "workload": a_gang("g", pods=2), "budget": 415.0}
    assert post(service, whole)[0] == 200
    assert post(service, whole | {"budget": 415.5})[0] == 400


def post(service, body):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    asked = urllib.request.Request(
        f"{service.url}/v1/plan",
        data=data,
        method="POST",
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(asked) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_plan_answers_as_the_command_does(service):
    """The same verdicts for the same objects; what is wrong is named with its place in the body."""
    cluster = a_fleet("2 racks x 2 nodes", gpu=2)
    status, answer = post(service, {"cluster": cluster, "workload": a_gang("g", pods=4, topo=RACK)})
    assert (status, answer["verdict"]) == (200, "placed")
    assert len(answer["gangs"][0]["assignments"]) == 4
    status, answer = post(service, {"cluster": cluster, "workload": a_gang("g", pods=9)})
    assert (status, answer["verdict"]) == (200, "impossible")
    for body, words in (
        ({"cluster": cluster, "workload": [{"kind": "Pod"}]}, ["workload[0]", "apiVersion"]),
        (
            {"cluster": [{**cluster[0], "status": {"capacity": {"cpu": "x"}}}]},
            ["cluster[0]", "cpu", '"x"'],
        ),
        ({"cluster": 3}, ["cluster"]),
        ({"clusters": []}, ["clusters"]),
        ({"cluster": [], "budget": 0}, ["budget"]),
        (b"[" * 100_000, ["body"]),
        (b"\xff", ["body"]),
        (b"1e99999", ["body", "out of range"]),
        (b"1" * 20_000, ["body", "out of range"]),
        (b"", ["body"]),
    ):
        status, answer = post(service, body)
        assert (status, answer["status"]) == (400, 400), answer
        for word in words:
            assert word in answer["detail"], answer


def test_plan_on_the_cluster_of_the_service(service, tmp_path):
    """What runs and what is reserved count; the question changes nothing; the command answers the same."""
    status, answer = post(service, {"workload": a_gang("asked", pods=1, requests={"cpu": "1m"})})
    assert (status, answer["verdict"]) == (200, "placed"), answer
    assert answer["as_of"].endswith("Z")
    status, answer = post(service, {"workload": a_gang("asked", pods=1, requests={"cpu": "1M"})})
    assert (status, answer["verdict"]) == (200, "impossible")
    wanted = tmp_path / "asked.yaml"
    wanted.write_text(yaml.safe_dump_all(a_gang("asked", pods=1, requests={"cpu": "1m"})))
    for words, code, expected in (
        (("-f", str(wanted)), 0, "PodGroup default/asked: placed"),
        (
            ("-f", str(wanted), "--cluster", str(wanted)),
            2,
            "give either --cluster FILE or --server URL",
        ),
        (("-f", str(wanted), "--search-budget", "1000000"), 2, "budget"),
        (("-f", str(tmp_path / "none.yaml")), 2, "none.yaml"),
    ):
        done = run_command("plan", "--server", service.url, *words)
        assert (done.returncode, expected in done.stdout + done.stderr) == (code, True), done
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get(service, "/v1/events?gang=default/asked")
