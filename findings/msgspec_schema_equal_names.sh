#!/usr/bin/env bash
# msgspec 0.22.0: types that a function makes under one name decode together, but their JSON Schema is a KeyError.
#
# A schema needs a name for each type. Where two types have one name, msgspec names them with module and qualified name: classes `Node` in two
# modules, or in two classes, work. Types made by defstruct, or by a class statement in a function that is called twice, have the
# same module and the same qualified name; decoding takes them by identity and is right, schema and schema_components end with a
# KeyError that has the class and neither what is wrong nor the two types. Who renders an OpenAPI document from types that are made
# from tables meets this with the second table. Remedy: give each type its own name, as defstruct(f"{kind}Node", ...).
#
# Installs msgspec in a temporary folder. Exit code 0: types of one name decode, names that differ in the class have a schema, and types that a
# function makes have none.
#
# Output seen on 2026-11-30 with msgspec 0.22.0, Python 3.11.7:
#   two classes, one name:       decoded; schema has 3 definitions
#   two defstruct, one name:     decoded; schema is a KeyError
#   a function called twice:     decoded; schema is a KeyError
#   two defstruct, two names:    decoded; schema has 3 definitions
set -euo pipefail
VERSION=0.22.0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check "msgspec==$VERSION"
cat > "$work/schemas.py" <<'PY'
import msgspec


class First:
    class Node(msgspec.Struct):
        name: str


class Second:
    class Node(msgspec.Struct):
        cpu: int


def node_type(field, of):
    class Node(msgspec.Struct):
        __annotations__ = {field: of}

    return Node


def outcome(first, second):
    pair = msgspec.defstruct("Pair", [("first", first), ("second", second)])
    decoded = msgspec.json.decode(b'{"first":{"name":"a"},"second":{"cpu":1}}', type=pair)
    assert (decoded.first.name, decoded.second.cpu) == ("a", 1)
    try:
        schema = msgspec.json.schema(pair)
    except KeyError:
        return "KeyError"
    return len(schema["$defs"])


def defined(first, second):
    return msgspec.defstruct(first, [("name", str)]), msgspec.defstruct(second, [("cpu", int)])


cases = {
    "two classes, one name": ((First.Node, Second.Node), 3),
    "two defstruct, one name": (defined("Node", "Node"), "KeyError"),
    "a function called twice": ((node_type("name", str), node_type("cpu", int)), "KeyError"),
    "two defstruct, two names": (defined("NamedNode", "CountedNode"), 3),
}
changed = False
for case, (types, expected) in cases.items():
    result = outcome(*types)
    changed = changed or result != expected
    print(f"{case + ':':28} decoded; schema", "is a KeyError" if result == "KeyError" else f"has {result} definitions")
raise SystemExit(changed)
PY
"$work/venv/bin/python" "$work/schemas.py"
