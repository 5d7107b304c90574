"""The public surface as text: every name that a user, an operator or kube-scheduler can see, one per line.

Owns the rendering, one function per subject, from the real product: the document of /v1, the help of the program, the
registry of metrics, the schemas of the structs, the catalogue of a database that was just migrated. The approved texts
are in `tests/golden/public_surface`, one file per subject; `tests/integration/test_public_surface.py` compares.

`make approve`, or `python -m tests.public_surface`, writes them anew; the diff of the commit is what a user would see change.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import functools
import importlib
import io
import json
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin
from unittest.mock import patch

import asyncpg
import msgspec
import yaml
from prometheus_client import Histogram

from extender import settings
from extender.cluster.connection.api_client import USER_AGENT
from extender.cluster.manifests.served.journal import Record
from extender.cluster.read.object_decoding import WRITTEN
from extender.cluster.read.pod_conversion import MARKERS
from extender.core.log.anchors import PublishedData as LogEnd
from extender.core.model.pods import GATE
from extender.core.reconcile.finalizer_rules import FINALIZER
from extender.core.workloads.workload_object import GROUP_LABELS
from extender.http.responses.json_responses import KNOWN
from extender.http.scheduler import wire
from extender.http.scheduler.verb_handlers import VerbHandlers
from extender.http.v1.openapi import document
from extender.http.web.health import Health, Probes
from extender.http.web.server import OPERATIONS, OpenApiRoute, StaticPages
from extender.ports.cluster_ports import Condition, K8sEvent
from extender.ports.written_names import (
    DISRUPTION_TARGET,
    EXEMPT_LABEL,
    GROUP_CONDITIONS,
    PARENT_ANNOTATIONS,
    PLAN_ANNOTATION,
    POD_SCHEDULED,
    PREEMPTED,
    REPORTER,
)
from extender.ports.written_names import LOG_HEAD_CONFIGMAP as LOG_END_NAME
from extender.queries.log.reports import LIVE_REPORTS, REPORTS, catalogue
from extender.store import schema_migration
from extender.store.log.event_codec import TYPES, VERSIONS, Row
from extender.telemetry import METRICS
from tests.support.logs.postgres import execute, fresh_database, run, running_postgres

ROOT = Path(__file__).parents[1]
APPROVED = ROOT / "tests" / "golden" / "public_surface"
COMMAND = "make approve"
COLUMNS = 100  # of the terminal in which the help is shown
PROGRAM = "gang-extender"
KUBERNETES_NAME = r"(?:[a-z0-9-]+\.)*(?:gang-extender\.dev|k8s\.io|kubernetes\.io)(?:/[\w./-]+)?"
ROLES_SQL = ROOT / "deploy" / "postgres" / "roles.sql"

Json = Mapping[str, Any]


# --- schemas as lines


def _type_of(schema: Json) -> str:
    """Return the type that a JSON schema describes in one line: `[T]` a list, `{T}` a map from strings, `A | B` either."""
    rest = {
        key: value
        for key, value in schema.items()
        if key not in ("title", "description", "properties", "required", "default", "type")
        and not key.startswith("x-kubernetes-validations")
    }
    kind = schema.get("type", "any")
    if "$ref" in rest:
        kind = rest.pop("$ref").rpartition("/")[2]
    elif "anyOf" in rest:
        kind = " | ".join(_type_of(one) for one in rest.pop("anyOf"))
    elif "enum" in rest:
        kind = " | ".join(sorted(json.dumps(one) for one in rest.pop("enum")))
    elif kind == "array":
        items = [_type_of(one) for one in rest.pop("prefixItems", ())]
        if rest.get("items", True) is not False:
            items.append(_type_of(rest.get("items", {})))
        rest.pop("items", None)
        kind = f"[{', '.join(items)}]"
    elif kind == "object" and isinstance(rest.get("additionalProperties"), Mapping):
        kind = f"{{{_type_of(rest.pop('additionalProperties'))}}}"
    limits = ", ".join(
        f"{key}={json.dumps(value, sort_keys=True)}" for key, value in sorted(rest.items())
    )
    return f"{kind} ({limits})" if limits else str(kind)


def _about(text: str) -> str:
    return f" -- {' '.join(text.split())}" if text else ""


def _lines_of(path: str, schema: Json, *, need: str = "") -> Iterator[str]:
    """Yield a line per field of a JSON schema, nested ones by their path."""
    default = f" = {json.dumps(schema['default'])}" if "default" in schema else ""
    yield f"{path}: {_type_of(schema)}{default}{need}{_about(schema.get('description', ''))}"
    for rule in schema.get("x-kubernetes-validations", ()):
        yield f"{path} rule{_about(rule.get('message', rule['rule']))}"
    required = set(schema.get("required", ()))
    for name, field in schema.get("properties", {}).items():
        yield from _lines_of(f"{path}.{name}", field, need=" required" * (name in required))
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        inner = schema.get(key)
        if isinstance(inner, Mapping) and "properties" in inner:
            yield from _lines_of(path + mark, inner)


def _components(types: Iterable[Any]) -> Json:
    return msgspec.json.schema_components(list(types), ref_template="{name}")[1]


def _component_lines(components: Json) -> list[str]:
    return sorted(line for name, schema in components.items() for line in _lines_of(name, schema))


_PLAIN = {
    str: "string",
    int: "integer",
    bool: "boolean",
    float: "number",
    type(None): "null",
    msgspec.Raw: "object of the Kubernetes API",
}


def _annotation(kind: Any) -> str:
    """Return a type of Python as `_type_of` shows a schema; for structs with bytes, which have no schema."""
    kind = getattr(kind, "__supertype__", kind)
    arguments = [_annotation(one) for one in get_args(kind)]
    match get_origin(kind):
        case None:
            return _PLAIN.get(kind) or kind.__name__
        case origin if origin is list:
            return f"[{arguments[0]}]"
        case origin if origin is dict:
            return f"{{{arguments[1]}}}"
        case _:
            return " | ".join(arguments)


def _struct_lines(kind: type[msgspec.Struct]) -> Iterator[str]:
    """Yield a line per field of a struct, under the names that are sent."""
    for field in msgspec.structs.fields(kind):
        default = (
            field.default_factory()
            if field.default is msgspec.NODEFAULT and not field.required
            else field.default
        )
        need = " required" if field.required else f" = {msgspec.json.encode(default).decode()}"
        yield f"{kind.__name__}.{field.encode_name}: {_annotation(field.type)}{need}"


# --- HTTP


def scheduler_wire() -> list[str]:
    """Return what kube-scheduler sends and gets: its requests and answers, field for field."""
    structs = [
        found
        for found in vars(wire).values()
        if isinstance(found, type) and issubclass(found, msgspec.Struct)
    ]
    paths = (f"{method} {path}" for method, path in _routes(VerbHandlers))
    return [*sorted(paths), "", *sorted(line for one in structs for line in _struct_lines(one))]


def _routes(handlers: type) -> list[tuple[str, str]]:
    """Return the routes of a class of handlers, without building one."""
    return [(route.method, route.path) for route in handlers.routes(object.__new__(handlers))]


def http() -> list[str]:
    """Return all paths; the parameters, headers and answers of /v1; every field of every answer but events (events.txt)."""
    found = document(OPERATIONS)
    paths = {f"{one.method} {one.path}" for one in Probes.api_routes(object.__new__(Probes))}
    paths |= {
        f"{method} {path}"
        for part in (Probes, OpenApiRoute, StaticPages)
        for method, path in _routes(part)
    }
    lines = [*sorted(paths), ""]
    for path, methods in sorted(found["paths"].items()):
        for method, operation in sorted(methods.items()):
            lines += [*_operation(f"{method.upper()} {path}", operation), ""]
    entries = _components(TYPES.values())
    others = {k: v for k, v in found["components"]["schemas"].items() if k not in entries}
    assert len(others) + len(entries) == len(found["components"]["schemas"])
    lines += _component_lines({**others, **_components([Health])})
    lines += ["", *(f"problem {status} {title}" for _, status, title in KNOWN)]
    return [*lines, "", *(f"header {name}" for name in _literals(r"(?:X|Gang-Extender)-[\w-]+"))]


def _operation(name: str, operation: Json) -> Iterator[str]:
    yield f"{name}  {operation['operationId']}{_about(operation['summary'])}"
    known = {"operationId", "summary", "parameters", "responses", "requestBody"}
    assert operation.keys() <= known, f"{name}: not rendered: {operation.keys() - known}"
    for one in sorted(operation["parameters"], key=lambda one: (one["in"], one["name"])):
        need = " required" * one["required"]
        text = f"{one['in']} {one['name']}: {_type_of(one['schema'])}{need}"
        default = f" = {json.dumps(one['schema']['default'])}" if "default" in one["schema"] else ""
        yield f"  {text}{default}{_about(one['description'])}"
    for medium, body in operation.get("requestBody", {}).get("content", {}).items():
        yield f"  body {medium}: {_type_of(body['schema'])}"
    for status, answer in sorted(operation["responses"].items()):
        headers = "".join(f", header {header}" for header in sorted(answer.get("headers", ())))
        if "content" not in answer:
            yield f"  {status}{headers}{_about(answer['description'])}"
        for medium, body in sorted(answer.get("content", {}).items()):
            yield f"  {status} {medium}: {_type_of(body['schema'])}{headers}"


def reports() -> list[str]:
    """Return the reports and their columns, in the order in which they are shown."""
    lines: list[str] = []
    for report in catalogue({**REPORTS, **LIVE_REPORTS}):
        lines.append(f"{report.name}{_about(report.description)}")
        lines += [f"{report.name}.{name}{_about(text)}" for name, text in report.columns.items()]
        lines += [f"{report.name} does not know: {report.limitations}", ""]
    return lines[:-1]


# --- events and files


def events() -> list[str]:
    """Return the types and versions of the log, the fields of each, and the columns around them in the order of the hash."""
    lines = [f"column {name}" for name in Row._fields]
    lines += ["", *(f"event {tag} version {VERSIONS[tag]}" for tag in sorted(TYPES))]
    return [*lines, "", *_component_lines(_components(TYPES.values()))]


def cluster_file() -> list[str]:
    """Return the fields of cluster.jsonl, the journal of the manifest cluster."""
    return _component_lines(_components([Record]))


# --- the command line and settings


def command_line() -> list[str]:
    """Return `--help` of the program and of each command, as a terminal of 100 columns shows it."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    lines = [f"program {name}" for name in sorted(scripts)]
    for words in ((), *_commands()):
        title = " ".join((PROGRAM, *words, "--help"))
        lines += ["", f"==== {title}", *_help(*words).strip("\n").splitlines()]
    return lines


def _commands(*group: str) -> list[tuple[str, ...]]:
    """Return the words of the commands of a group in the order of the help; a group itself is before its commands."""
    listed = _help(*group).partition("\nCommands:\n")[2]
    names = re.findall(r"^  ([\w-]+)", listed, re.MULTILINE)
    assert names or group, f"no commands in:\n{_help()}"
    return [words for name in names for words in ((*group, name), *_commands(*group, name))]


@functools.cache
def _help(*words: str) -> str:
    """Run the program, as its entry point does, with `--help`."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts[PROGRAM].partition(":")
    main = getattr(importlib.import_module(module), function)
    shown = io.StringIO()
    environ = {"COLUMNS": str(COLUMNS), "LINES": "50", "TERM": "dumb", "PATH": os.environ["PATH"]}
    with (
        patch.dict(os.environ, environ, clear=True),
        patch.object(sys, "argv", [PROGRAM, *words, "--help"]),
        # else the help names the module that runs the tests
        patch.object(sys.modules["__main__"], "__package__", None, create=True),
        contextlib.redirect_stdout(shown),
    ):
        try:
            main()
        except SystemExit as ended:
            code = ended.code
        else:
            code = None
    assert not code, f"{PROGRAM} {words} --help ended with {code}"
    return shown.getvalue()


def environment() -> list[str]:
    """Return the settings with variable, type, default and the commands that have a flag of the name; then other variables."""
    schema = _components([settings.Settings])["Settings"]
    flags = {
        " ".join(words): re.findall(r"^  (--[\w-]+)", _help(*words), re.MULTILINE)
        for words in _commands()
    }
    lines = []
    for name, field in sorted(schema["properties"].items()):
        flag = "--" + name.replace("_", "-")
        having = ", ".join(command for command, found in flags.items() if flag in found)
        default = f" = {json.dumps(field['default'])}" if "default" in field else " required"
        shown = f"{flag} of {having}" if having else "no flag"
        about = _about(field.get("description", ""))
        lines.append(
            f"{settings.PREFIX}{name.upper()} ({shown}): {_type_of(field)}{default}{about}"
        )
    return [*lines, "", *(f"read {name}" for name in sorted(_variables()))]


def _variables() -> set[str]:
    """Find the environment variables that are read by name."""
    found: set[str] = set()
    for tree in _trees("environ"):
        for node in ast.walk(tree):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=mapping, attr="get" | "pop"), args=[first, *_]
                ):
                    names: list[ast.expr] = [first]
                case ast.Subscript(value=mapping, slice=first):
                    names = [first]
                case ast.Compare(left=first, comparators=[mapping]):
                    names = [first]
                case _:
                    continue
            if ast.unparse(mapping).rpartition(".")[2] in ("environ", "variables"):
                found |= {n.value for n in names if isinstance(n, ast.Constant)}
    return {name for name in found if isinstance(name, str)}


# --- metrics


def metrics() -> list[str]:
    """Return every metric with type, labels, bounds of its buckets, and what it counts."""
    lines = []
    for collector in {*METRICS.registry._collector_to_names}:
        name = collector._name + "_total" * (collector._type == "counter")
        labels = f"{{{', '.join(collector._labelnames)}}}"
        bounds = collector._kwargs.get("buckets")
        if bounds == Histogram.DEFAULT_BUCKETS:
            bounds = None  # those of the library
        buckets = f" buckets {', '.join(f'{bound:g}' for bound in bounds)}" if bounds else ""
        lines.append(
            f"{name} {collector._type} {labels}{buckets}{_about(collector._documentation)}"
        )
    return sorted(lines)


# --- Kubernetes


def kubernetes() -> list[str]:
    """Return the names on objects of Kubernetes: what each is, then all that the program knows, then the objects of deploy/."""
    by_role = [
        ("annotation", [PLAN_ANNOTATION], "of a pod: the admission it is bound under"),
        ("annotation", PARENT_ANNOTATIONS, "of a group: its parent"),
        ("annotation", [WRITTEN], "of a group: the fields it was written with"),
        ("label", GROUP_LABELS, "of a pod: its group"),
        ("resource", sorted(MARKERS), "of a pod"),
        ("scheduling gate", [GATE], "of a pod"),
        ("finalizer", [FINALIZER], "of a group"),
        ("condition type", sorted(GROUP_CONDITIONS), "of a group"),
        ("condition type", [DISRUPTION_TARGET, POD_SCHEDULED], "of a pod"),
        ("condition reason", [PREEMPTED], f"of {DISRUPTION_TARGET}"),
        ("namespace label", [EXEMPT_LABEL], "its pods are never changed"),
        ("reporting controller", [REPORTER], "of Events"),
        ("user agent", [USER_AGENT], "of requests"),
        ("ConfigMap", [LOG_END_NAME], "the end of the log"),
        (f"ConfigMap {LOG_END_NAME} data", LogEnd.__struct_fields__, "the end of the log"),
    ]
    lines = [f"{role} {name}{_about(about)}" for role, names, about in by_role for name in names]
    for kind, fields in ((Condition, ("type", "reason")), (K8sEvent, ("reason", "action"))):
        what = "condition" if kind is Condition else "Event"
        for field in fields:
            lines += [f"{what} {field} {name}" for name in sorted(_given(kind, field))]
    lines += ["", *(f"name in the program: {name}" for name in _literals(KUBERNETES_NAME))]
    lines += ["", *(f"name in deploy/: {name}" for name in sorted(_names_in_manifests()))]
    return [*lines, "", *sorted(f"object {name}" for name in _objects())]


def _objects() -> Iterator[str]:
    """Name the objects of deploy/kubernetes, with the keys of their labels and annotations."""
    for found in _manifests():
        if isinstance(found, dict):  # a list is a JSON patch
            meta = found.get("metadata", {})
            name = "/".join(filter(None, (meta.get("namespace"), meta.get("name"))))
            marks = sorted({*meta.get("labels", {}), *meta.get("annotations", {})})
            words = (found.get("apiVersion", ""), found.get("kind", "part of an object"), name)
            yield " ".join((*filter(None, words), *(f"[{mark}]" for mark in marks)))


def _names_in_manifests() -> set[str]:
    """Find the names of our own domain anywhere in the manifests, in expressions too."""
    name = re.compile(r"\bgang-extender\.dev/[\w.-]*\w")
    return {found for one in _manifests() for found in name.findall(json.dumps(one, default=str))}


@functools.cache
def _manifests() -> tuple[Any, ...]:
    paths = sorted((ROOT / "deploy" / "kubernetes").rglob("*.yaml"))
    return tuple(found for path in paths for found in _yaml(path))


def _yaml(path: Path) -> list[Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [found for found in yaml.load_all(path.read_text(), Loader=loader) if found]


def custom_resources() -> list[str]:
    """Return kinds, columns and every field of our CustomResourceDefinitions, as deploy/ has them."""
    lines: list[str] = []
    for found in _yaml(ROOT / "deploy" / "kubernetes" / "crds.yaml"):
        spec = found["spec"]
        names = spec["names"]
        for version in spec["versions"]:
            kind = f"{spec['group']}/{version['name']} {names['kind']}"
            about = dict(sorted(names.items())) | {"scope": spec["scope"]}
            about |= {k: v for k, v in sorted(version.items()) if isinstance(v, bool)}
            lines += [f"{kind} {key}: {json.dumps(value)}" for key, value in about.items()]
            lines += [
                f"{kind} subresource: {name}" for name in sorted(version.get("subresources", ()))
            ]
            for column in version.get("additionalPrinterColumns", ()):
                lines.append(
                    f"{kind} column {column['name']}: {column['type']} {column['jsonPath']}"
                )
            schema = version["schema"]["openAPIV3Schema"]
            lines += [*sorted({*_lines_of(names["kind"], schema)}), ""]
    return lines[:-1]


# --- names in the sources


@functools.cache
def _sources() -> tuple[str, ...]:
    return tuple(path.read_text() for path in sorted((ROOT / "extender").rglob("*.py")))


@functools.cache
def _trees(word: str) -> tuple[ast.Module, ...]:
    """Parse the sources that hold a word."""
    return tuple(ast.parse(text) for text in _sources() if word in text)


def _literals(pattern: str) -> list[str]:
    """Find the names in string literals of the sources, docstrings left out; they outlive any move of a module."""
    name = re.compile(rf"(?<![\w./-]){pattern}")
    found: set[str] = set()
    for text in _sources():
        if not name.search(text):
            continue
        tree = ast.parse(text)
        docstrings = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and id(node) not in docstrings
            ):
                found |= {one.rstrip(".") for one in name.findall(node.value)}
    return sorted(found)


def _given(kind: type, field: str) -> set[str]:
    """Find the values that a field of a struct is given where it is made or replaced, as far as the source has them."""
    found: set[str] = set()
    names = (kind.__name__, f"{kind.__name__}.about", "msgspec.structs.replace")
    for tree in _trees(kind.__name__):
        for scope in ast.walk(tree):
            if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
                for call in _calls(scope, *names):
                    for keyword in call.keywords:
                        if keyword.arg == field:
                            found |= _values(tree, scope, keyword.value)
    return found


def _calls(scope: ast.AST, *names: str) -> list[ast.Call]:
    calls = (node for node in ast.walk(scope) if isinstance(node, ast.Call))
    return [call for call in calls if ast.unparse(call.func) in names]


def _values(tree: ast.Module, scope: ast.AST, node: ast.expr) -> set[str]:
    """Return the texts that an expression can be: literals, what a name is set to, what a function returns or is given."""
    found: set[str] = set()
    match node:
        case ast.Constant(value=str(text)):
            found = {text}
        case ast.JoinedStr(values=parts):
            found = {"".join(p.value if isinstance(p, ast.Constant) else "*" for p in parts)}
        case ast.IfExp(body=one, orelse=other):
            found = _values(tree, scope, one) | _values(tree, scope, other)
        case ast.Name(id=name):
            for other in (*ast.walk(scope), *tree.body):
                targets = (
                    other.targets
                    if isinstance(other, ast.Assign)
                    else [getattr(other, "target", None)]
                )
                if any(isinstance(one, ast.Name) and one.id == name for one in targets):
                    value = getattr(other, "value", None)
                    found |= _values(tree, scope, value) if isinstance(value, ast.expr) else set()
            for caller in ast.walk(tree):
                if (
                    isinstance(caller, ast.FunctionDef | ast.AsyncFunctionDef)
                    and caller is not scope
                ):
                    for call in _calls(caller, getattr(scope, "name", "")):
                        for keyword in call.keywords:
                            if keyword.arg == name:
                                found |= _values(tree, caller, keyword.value)
        case ast.Call(func=ast.Name(id=name)):
            for other in tree.body:
                if isinstance(other, ast.FunctionDef) and other.name == name:
                    for returned in ast.walk(other):
                        if isinstance(returned, ast.Return) and returned.value is not None:
                            found |= _values(tree, other, returned.value)
    return found


# --- the database

RELATIONS = """
SELECT format('%s gx.%s', CASE relkind WHEN 'v' THEN 'view' WHEN 'r' THEN 'table' WHEN 'S' THEN 'sequence' ELSE relkind::text END, relname)
       || CASE WHEN relowner = 'gx_owner'::regrole THEN '' ELSE ' NOT OWNED BY gx_owner' END
       || coalesce(' with (' || array_to_string(reloptions, ', ') || ')', '')
FROM pg_class WHERE relnamespace = 'gx'::regnamespace AND relkind NOT IN ('i', 'c', 't')
"""
COLUMNS_OF = """
SELECT format('column gx.%s.%s %s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod))
       || CASE WHEN a.attnotnull THEN ' not null' ELSE '' END
       || CASE WHEN a.attidentity <> '' THEN ' identity' WHEN a.attgenerated <> '' THEN ' generated' ELSE '' END
       || coalesce(' default ' || pg_get_expr(d.adbin, d.adrelid), '')
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
WHERE c.relnamespace = 'gx'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm') AND a.attnum > 0 AND NOT a.attisdropped
"""
CONSTRAINTS = """
SELECT format('constraint gx.%s %s: %s', r.relname, k.conname, pg_get_constraintdef(k.oid))
FROM pg_constraint k JOIN pg_class r ON r.oid = k.conrelid
WHERE r.relnamespace = 'gx'::regnamespace AND k.contype <> 'n'
"""
INDEXES = """
SELECT format('index gx.%s %s: %s', tablename, indexname, regexp_replace(indexdef, '^.* USING ', ''))
       || CASE WHEN indexdef LIKE 'CREATE UNIQUE%' THEN ' unique' ELSE '' END
FROM pg_indexes WHERE schemaname = 'gx'
"""
TRIGGERS = """
SELECT format('trigger gx.%s: %s', c.relname, pg_get_triggerdef(t.oid))
FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
WHERE c.relnamespace = 'gx'::regnamespace AND NOT t.tgisinternal
"""
FUNCTIONS = """
SELECT format('function gx.%s(%s) -> %s', proname, pg_get_function_arguments(oid), pg_get_function_result(oid))
       || CASE WHEN prosecdef THEN ' security definer' ELSE '' END
       || CASE WHEN proowner = 'gx_owner'::regrole THEN '' ELSE ' NOT OWNED BY gx_owner' END
FROM pg_proc WHERE pronamespace = 'gx'::regnamespace
"""
TYPES_OF = """
SELECT format('type gx.%s %s', t.typname, t.typtype) FROM pg_type t LEFT JOIN pg_class c ON c.oid = t.typrelid
WHERE t.typnamespace = 'gx'::regnamespace AND t.typelem = 0 AND coalesce(c.relkind, 'c') = 'c'
"""
GRANTS = """
WITH granted (what, acl, owner) AS (
    SELECT 'schema gx', nspacl, nspowner FROM pg_namespace WHERE nspname = 'gx'
    UNION ALL
    SELECT 'gx.' || relname, relacl, relowner FROM pg_class WHERE relnamespace = 'gx'::regnamespace
    UNION ALL
    SELECT format('gx.%s.%s', c.relname, a.attname), a.attacl, c.relowner
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid WHERE c.relnamespace = 'gx'::regnamespace
    UNION ALL
    SELECT format('gx.%s(%s)', proname, pg_get_function_identity_arguments(oid)),
           coalesce(proacl, acldefault('f', proowner)), proowner
    FROM pg_proc WHERE pronamespace = 'gx'::regnamespace
    UNION ALL
    SELECT 'the database', coalesce(datacl, acldefault('d', datdba)), datdba FROM pg_database
    WHERE datname = current_database()
)
SELECT format('grant %s on %s to %s', lower(string_agg(a.privilege_type, ', ' ORDER BY a.privilege_type)), what,
              CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END)
FROM granted, aclexplode(acl) a WHERE a.grantee <> owner GROUP BY what, a.grantee
"""
ROLES = """
SELECT format('role %s', rolname) || coalesce(' member of ' || (
    SELECT string_agg(m.roleid::regrole::text, ', ' ORDER BY m.roleid::regrole::text)
    FROM pg_auth_members m WHERE m.member = r.oid), '')
FROM pg_roles r WHERE rolname IN ('gx_owner', 'gx_writer', 'gx_auditor')
"""
COMMENTS = """
SELECT format('%s: %s', concat_ws('.', 'gx', c.relname, a.attname), d.description)
FROM pg_description d JOIN pg_class c ON c.oid = d.objoid AND d.classoid = 'pg_class'::regclass
LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = d.objsubid AND d.objsubid > 0
WHERE c.relnamespace = 'gx'::regnamespace
UNION ALL
SELECT format('gx.%s(): %s', p.proname, d.description)
FROM pg_description d JOIN pg_proc p ON p.oid = d.objoid AND d.classoid = 'pg_proc'::regclass
WHERE p.pronamespace = 'gx'::regnamespace
"""
DATABASE = (
    RELATIONS, COLUMNS_OF, CONSTRAINTS, INDEXES, TRIGGERS, FUNCTIONS, TYPES_OF, ROLES, GRANTS,
)  # fmt: skip


async def _fetched(url: str, *queries: str) -> list[list[str]]:
    connection = await asyncpg.connect(url)
    try:
        return [sorted(row[0] for row in await connection.fetch(query)) for query in queries]
    finally:
        await connection.close()


async def database(url: str) -> dict[str, list[str]]:
    """Migrate an empty database as deploy/README has it, with the roles of roles.sql, and give what is in schema gx.

    Returns:
        `database`: all names with types, signatures and rights; `database-comments`: what `\\d+` shows beside them.
    """
    await execute(url, ROLES_SQL.read_text())
    await schema_migration.upgrade(url)
    *parts, comments = await _fetched(url, *DATABASE, COMMENTS)
    lines = [line for part in parts if part for line in (*part, "")]
    return {
        "database": lines[:-1],
        "database-comments": [" ".join(line.split()) for line in comments],
    }


# --- comparing and approving

SUBJECTS: Mapping[str, Callable[[], list[str]]] = {
    "cluster-file": cluster_file,
    "command-line": command_line,
    "custom-resources": custom_resources,
    "environment": environment,
    "events": events,
    "http": http,
    "kubernetes": kubernetes,
    "metrics": metrics,
    "reports": reports,
    "scheduler-wire": scheduler_wire,
}
DATABASE_SUBJECTS = ("database", "database-comments")


def text_of(lines: Iterable[str]) -> str:
    """Return the text of a file, its first line with what it is and how it is renewed."""
    return "\n".join((f"# Public surface. Generated by `{COMMAND}`; do not edit.", *lines, ""))


def difference(subject: str, lines: Iterable[str], approved: Path = APPROVED) -> str:
    """Return the difference between what is approved and what is thereas a unified diff, or an empty string."""
    path = approved / f"{subject}.txt"
    before = path.read_text() if path.is_file() else ""
    now = text_of(lines)
    if before == now:
        return ""
    shown = difflib.unified_diff(
        before.splitlines(), now.splitlines(), f"approved {path.name}", "present", lineterm="", n=1
    )
    return "\n".join(
        (f"The public surface has changed: {subject}.", *shown, f"If this is meant: {COMMAND}")
    )


def main() -> None:
    """Write all approved files anew, and name those that changed."""
    found = {subject: render() for subject, render in SUBJECTS.items()}
    with running_postgres() as server, fresh_database(server.url) as url:
        found |= run(database(url))
    APPROVED.mkdir(parents=True, exist_ok=True)
    for path in APPROVED.glob("*.txt"):
        if path.stem not in found:
            path.unlink()
            print(f"removed {path.relative_to(ROOT)}")
    for subject, lines in sorted(found.items()):
        path = APPROVED / f"{subject}.txt"
        if difference(subject, lines):
            path.write_text(text_of(lines))
            print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
