"""The document of /v1 has all routes, all fields of the structs that are encoded, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
from jsonschema import Draft202012Validator

from extender.http.v1.explain_api import ExplainApi
from extender.http.v1.history_api import ReportApi
from extender.http.v1.openapi import EVENT_TYPES, document
from extender.http.v1.plan_api import PlanApi
from extender.http.v1.state_api import PastNodesApi, StateApi
from extender.http.v1.status_api import StatusApi
from extender.http.web.server import OPERATIONS
from extender.queries.log.decision_details import Decision
from extender.queries.log.event_dto import EventLine
from extender.queries.log.gang_history import HistoryLine
from tests.integration.http.test_scheduler_verbs import Served
from tests.integration.store.test_reference_index import golden_events

DOCUMENT = document(OPERATIONS)


async def test_every_route_is_in_the_document_and_the_other_way_round():
    async with Served() as served:
        routes = {
            (route.method.lower(), route.resource.canonical)
            for route in served.client.app.router.routes()
            if route.resource.canonical.startswith("/v1/") and route.method != "HEAD"
        }
    # built by the wiring alone: they need a process of their own, or the database
    others = (
        PlanApi(None, None, None, None, None, None),
        ExplainApi(None, None),
        StateApi(None),
        PastNodesApi(None),
        ReportApi(None, None, None),
        StatusApi(None),
    )
    routes |= {(route.method.lower(), route.path) for api in others for route in api.routes()}
    described = {(method, path) for path, found in DOCUMENT["paths"].items() for method in found}
    assert routes - {("get", "/v1/openapi.json")} == described


def test_operations_have_names_of_their_own():
    names = [operation.name for operation in OPERATIONS]
    assert len(set(names)) == len(names)


def test_the_fields_of_a_event_are_those_of_the_contract():
    """They are stable (docs/versions.md)."""
    schema = DOCUMENT["components"]["schemas"]["EventLine"]
    wanted = [
        "position",
        "time",
        "type",
        "stream_version",
        "gang",
        "gang_uid",
        "epoch",
        "actor",
        "cause",
        "summary",
        "data",
    ]
    assert list(schema["properties"]) == schema["required"] == wanted
    assert list(EventLine.__struct_fields__) == wanted
    history = DOCUMENT["components"]["schemas"]["HistoryLine"]
    assert history["required"] == wanted
    assert set(history["properties"]) - set(wanted) == {
        "reason",
        "caused_by",
        "cause_position",
        "decision",
    }


def test_golden_events_fit_the_schema(subtests):
    events = list(golden_events())
    for kind in EVENT_TYPES:
        with subtests.test(kind.__name__):
            (event,) = (event for event in events if type(event) is kind)
            schema = {
                "$ref": f"#/components/schemas/{kind.__name__}",
                "components": DOCUMENT["components"],
            }
            Draft202012Validator(schema).validate(msgspec.json.decode(msgspec.json.encode(event)))


def test_the_page_about_asking_names_the_fields_that_there_are():
    """docs/api.md: its tables are the schema, in words."""
    text = (Path(__file__).parents[4] / "docs" / "api.md").read_text()
    documented = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    extra = ["reason", "caused_by", "cause_position", "decision"]
    assert documented == [*EventLine.__struct_fields__, *extra]
    assert list(HistoryLine.__struct_fields__) == documented
    for field in Decision.__struct_fields__:
        assert f"`{field}`" in text
