"""Writes the reference pages of the site from the product: settings, metrics, events, commands, HTTP, CRDs, SQL.

`write` is called by `conf.py` at each build, so that no page can be older than the code. Texts come from the code: a
description that is missing there is missing here.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml
from prometheus_client.metrics import MetricWrapperBase

from extender import settings
from extender.cli.main import COMMANDS, imported_command
from extender.http.v1.openapi import document
from extender.http.web.server import OPERATIONS
from extender.queries.log.reports import LIVE_REPORTS, REPORTS, catalogue
from extender.store.log.event_codec import TYPES, VERSIONS
from extender.telemetry import Metrics

ROOT = Path(__file__).resolve().parents[2]
Json = Mapping[str, Any]
METRIC_UNITS = {
    "timestamp_seconds": "Unix time in seconds",
    "_seconds": "seconds",
    "_bytes": "bytes",
    "_position": "position in the log",
}


def write(folder: Path) -> None:
    """Write one page per subject, and the list of them as `index.md`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (title, about, lines) in PAGES.items():
        text = "\n".join([f"# {title}", "", about, "", *lines()]) + "\n"
        _write(folder / f"{name}.md", text)
    index = [
        "# Reference",
        "",
        "Generated from the code at each build of this site.",
        "",
        "```{toctree}",
    ]
    _write(folder / "index.md", "\n".join([*index, *PAGES, "```"]) + "\n")


def _write(path: Path, text: str) -> None:
    """Write a file if its text changed, so that Sphinx reads only what is new."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def settings_page() -> Iterator[str]:
    """Yield the table of the settings."""
    _, components = msgspec.json.schema_components([settings.Settings])
    rows = []
    for name, field in components["Settings"]["properties"].items():
        default = _json(field["default"]) if "default" in field else "required"
        variable = f"`{settings.PREFIX}{name.upper()}`"
        flag = f"`--{name.replace('_', '-')}`"
        about = f"{field.get('description', '')} Default: `{default}` ({_type(field)})."
        rows.append((f"{flag}<br>{variable}", about))
    yield from _table(("flag of `serve`, variable", "meaning"), rows)


def metrics_page() -> Iterator[str]:
    """Yield the table of the metrics, each with the alerts and panels that use it."""
    rows, uses = [], metric_uses()
    for metric in vars(Metrics()).values():
        if isinstance(metric, MetricWrapperBase):
            (family,) = metric.describe()
            name = family.name + "_total" * (family.type == "counter")
            labels = ", ".join(f"`{label}`" for label in metric._labelnames)  # noqa: SLF001, no other way to them
            shown = "<br>".join(uses.get(family.name, ()))
            rows.append(
                (f"`{name}`", family.type, labels, _unit(family.name), family.documentation, shown)
            )
    header = ("metric", "type", "labels", "unit", "meaning", "alerts, panels of dashboards")
    yield from _table(header, sorted(rows))


def metric_uses() -> Mapping[str, Sequence[str]]:
    """Return the alerts (as links) and the panels (dashboard: title) whose queries name a metric, by its name without suffix."""
    monitoring = ROOT / "deploy" / "monitoring"
    rules = yaml.safe_load((monitoring / "rules.yaml").read_text())["groups"]
    queries = [
        (f"[{rule['alert']}](../../alerts/{rule['alert']}.md)", rule["expr"])
        for group in rules
        for rule in group["rules"]
    ]
    for path in sorted((monitoring / "dashboards").glob("*.json")):
        for panel in msgspec.json.decode(path.read_bytes())["panels"]:
            expressions = " ".join(target["expr"] for target in panel["targets"])
            queries.append((f"{path.stem}: {panel['title']}", expressions))
    found: dict[str, list[str]] = {}
    for used_by, query in queries:
        for name in sorted(set(re.findall(r"gang_extender_\w+", query))):
            base = re.sub(r"_(total|bucket|sum|count)$", "", name)
            found.setdefault(base, []).append(used_by)
    return found


def _unit(name: str) -> str:
    for part, unit in METRIC_UNITS.items():
        if part in name:
            return unit
    return "number"


def events_page() -> Iterator[str]:
    """Yield a section per type of event."""
    _, components = msgspec.json.schema_components(TYPES.values())
    tags = {kind.__name__: tag for tag, kind in TYPES.items()}
    for name in (*sorted(tags), *sorted(components.keys() - tags)):
        schema = components[name]
        version = f"Version {VERSIONS[tags[name]]}. " if name in tags else ""
        yield from (f"## {name}", "", f"{version}{_text(schema.get('description', ''))}", "")
        rows = [
            (f"`{field}`", _type(kind), "yes" if field in schema.get("required", ()) else "no")
            for field, kind in schema.get("properties", {}).items()
            if field != "type"
        ]
        yield from (*_table(("field", "type", "always"), rows), "")


def commands_page() -> Iterator[str]:
    """Yield a section per command, with its options and examples."""
    for words in COMMANDS:
        command = imported_command(words)
        context = command.make_context(words, [], resilient_parsing=True)
        yield from (
            f"## gang-extender {words}",
            "",
            _text(inspect.cleandoc(command.help or "")),
            "",
        )
        records = [one.get_help_record(context) for one in command.get_params(context)]
        rows = [(f"`{record[0]}`", record[1]) for record in records if record is not None]
        yield from (*_table(("option", "meaning"), rows), "")
        if command.epilog:
            yield from ("```console", *inspect.cleandoc(command.epilog).splitlines(), "```", "")


def http_page() -> Iterator[str]:
    """Yield a section per operation of /v1."""
    for path, methods in sorted(document(OPERATIONS)["paths"].items()):
        for method, operation in sorted(methods.items()):
            yield from (f"## {method.upper()} {path}", "", _text(operation["summary"]), "")
            rows = [
                (f"`{one['name']}`", one["in"], _type(one["schema"]), one["description"])
                for one in operation["parameters"]
            ]
            yield from (*_table(("parameter", "in", "type", "meaning"), rows), "")
            answers = [
                (
                    status,
                    ", ".join(f"`{kind}`" for kind in answer.get("content", {})),
                    answer["description"],
                )
                for status, answer in sorted(operation["responses"].items())
            ]
            yield from (*_table(("status", "content", "meaning"), answers), "")


def resources_page() -> Iterator[str]:
    """Yield a section per kind, with every field of its schema."""
    text = (ROOT / "deploy/kubernetes/crds.yaml").read_text()
    for found in filter(None, yaml.safe_load_all(text)):
        spec = found["spec"]
        for version in spec["versions"]:
            yield from (f"## {spec['names']['kind']} {spec['group']}/{version['name']}", "")
            schema = version["schema"]["openAPIV3Schema"]
            yield from (_text(schema.get("description", "")), "")
            yield from (*_table(("field", "type", "meaning"), _fields("", schema)), "")


def _fields(path: str, schema: Json) -> Iterator[tuple[str, str, str]]:
    for name, field in schema.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        if here not in ("apiVersion", "kind", "metadata"):
            kind = str(field.get("type", "any"))
            allowed = field.get("enum")
            shown = f"{kind}: {', '.join(map(str, allowed))}" if allowed else kind
            yield (f"`{here}`", shown, field.get("description", ""))
            yield from _fields(here, field)
            yield from _fields(f"{here}[]", field.get("items", {}))


def database_page() -> Iterator[str]:
    """Yield a section per table, view and function that has comments in the database; approved texts of the tests."""
    approved = (ROOT / "tests/golden/public_surface/database-comments.txt").read_text()
    tables: dict[str, list[tuple[str, str]]] = {}
    for line in approved.splitlines():
        if found := re.match(r"(gx\.\w+)(?:\.(\w+))?(?:\([^)]*\))?: (.*)", line):
            table, column, text = found.groups()
            tables.setdefault(table, []).append((f"`{column}`" if column else "", text))
    for table, rows in sorted(tables.items()):
        yield from (f"## {table}", "")
        yield from (text for column, text in rows if not column)
        yield ""
        yield from (*_table(("column", "meaning"), [row for row in rows if row[0]]), "")


def reports_page() -> Iterator[str]:
    """Yield a section per report."""
    for report in catalogue({**REPORTS, **LIVE_REPORTS}):
        yield from (f"## {report.name}", "", _text(report.description), "")
        rows = [(f"`{name}`", text) for name, text in report.columns.items()]
        yield from (*_table(("column", "meaning"), rows), "", _text(report.limitations), "")


def _type(schema: Json) -> str:
    """Return a JSON schema in a few words, such as `string or null`."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return ", ".join(_json(value) for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items') or {})}" if schema.get("items") else "list"
    if isinstance(schema.get("additionalProperties"), Mapping):
        return f"map of {_type(schema['additionalProperties'])}"
    return str(schema.get("type", "any"))


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a table; nothing where there are no rows."""
    found = list(rows)
    if found:
        yield f"| {' | '.join(headers)} |"
        yield f"|{'---|' * len(headers)}"
        for row in found:
            yield f"| {' | '.join(_cell(cell) for cell in row)} |"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _text(text: str) -> str:
    """Return the text of a docstring without marks of another format."""
    return "\n".join(line.rstrip() for line in text.splitlines())


PAGES: dict[str, tuple[str, str, Callable[[], Iterator[str]]]] = {
    "settings": ("Settings", "Flags take precedence over variables; `gang-extender config` prints the values in use.", settings_page),
    "commands": ("Commands", "`kubectl gang` is the same program.", commands_page),
    "http": ("HTTP", "The read API under `/v1`; `GET /v1/openapi.json` is the same as a document.", http_page),
    "resources": ("Custom resources", "Our kinds of Kubernetes objects, field by field.", resources_page),
    "events": ("Events", "The types of events in the log. Stored events are never changed; a field that is not *always* there was added later, or is left out when it is empty.", events_page),
    "reports": ("Reports", "`gang-extender report NAME` and `GET /v1/reports/NAME`.", reports_page),
    "database": ("Tables and views", "What auditors read by SQL, in schema `gx`.", database_page),
    "metrics": ("Metrics", "`GET /metrics`. Alerts are in [docs/alerts](../../alerts/README.md).", metrics_page),
}  # fmt: skip
