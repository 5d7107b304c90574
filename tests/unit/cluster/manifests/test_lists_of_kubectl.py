"""Lists as kubectl prints them are read item by item, and give what reading the whole file gives."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import yaml

from extender.cluster.manifests import yaml_reader
from extender.cluster.manifests.manifest_entries import Role, entries_in
from extender.cluster.manifests.manifest_loader import load
from extender.cluster.manifests.yaml_reader import Document, JsonItem, documents, read_file
from extender.core.model.errors import BadInput
from tests.support.service.manifest_builders import RACK, a_node, a_pod


def a_cluster(nodes=10, pods=100):
    """Nodes and running pods, some with texts that look like the end of a list."""
    found = [
        a_node(f"n{n}", {RACK: f"r{n // 16}", "on": "yes", "octal": "0755"}, gpu=8)
        for n in range(nodes)
    ]
    for n in range(pods):
        text = (
            "first\n- apiVersion: v1\n\n  - kind: Pod\nkind: List\n" if n % 7 == 0 else "x: - y # z"
        )
        found.append(
            a_pod(
                f"p{n}",
                node=f"n{n % nodes}",
                metadata={"annotations": {"text": text, "number": str(n)}},
            )
        )
    return found


@pytest.fixture
def write(tmp_path):
    """Write a list as kubectl prints it."""

    def to_file(items, form="yaml"):
        path = tmp_path / f"list.{form}"
        whole = {
            "apiVersion": "v1",
            "items": items,
            "kind": "List",
            "metadata": {"resourceVersion": ""},
        }
        path.write_text(
            json.dumps(whole, indent=4) if form == "json" else yaml.safe_dump(whole, width=100_000)
        )
        return str(path)

    return to_file


@pytest.mark.parametrize("indent", [None, 4])
def test_two_lists_of_items_are_refused(write, tmp_path, indent):
    """Also where an item has the key, and in the layout of kubectl, with the second list at the end."""
    volume = {"name": "v", "configMap": {"name": "c", "items": [{"key": "items", "path": "p"}]}}
    item = a_pod("p", volumes=[volume])
    whole = {"apiVersion": "v1", "items": [item], "kind": "List", "metadata": {}}
    text = json.dumps(whole, indent=indent)
    path = tmp_path / "twice.json"
    path.write_text(text)
    assert len(list(documents(str(path)))) == 1
    path.write_text(text[:-1].rstrip() + ', "items": []}')
    with pytest.raises(BadInput, match=r'twice.json: key "items" is a duplicate'):
        list(documents(str(path)))


def the_items(path):
    (whole,) = read_file(path)
    return whole.value["items"]


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_items_are_those_of_the_whole_file(write, monkeypatch, form):
    """Every item with its place, also where a block ends within one; the progress ends at the size of the file."""
    monkeypatch.setattr(yaml_reader, "_REPORT_EVERY", 5_000)
    monkeypatch.setattr(yaml_reader, "_JSON_BLOCK", 5_000)
    path = write(a_cluster(nodes=10, pods=200), form)
    states = []
    items = list(documents(path, lambda *state: states.append(state)))
    if form == "json":
        items = [item.document for item in items]
    assert [item.value for item in items] == the_items(path)
    assert items[7].where == f"{path}, document 1, item 8"
    read = [done for _, done, _ in states]
    assert len(read) > 5
    assert read == sorted(read)
    assert states[-1] == (path, Path(path).stat().st_size, Path(path).stat().st_size)


@pytest.mark.parametrize("block", [10, 700, 1 << 20])
@pytest.mark.parametrize("layout", ["kubectl", "compact", "an end within an item", "other kind"])
def test_json_of_any_layout_gives_the_same_items(write, monkeypatch, layout, block):
    """A text that only begins and ends as kubectl prints it is read as a whole from where it differs."""
    monkeypatch.setattr(yaml_reader, "_JSON_BLOCK", block)
    path = Path(write(a_cluster(nodes=6, pods=0), "json"))
    expected, text = the_items(path), path.read_text()
    if layout == "compact":
        path.write_text(json.dumps(json.loads(text)))
    elif layout == "other kind":
        path.write_text(text.replace('"kind": "List"', '"kind": "NodeList"'))
    elif layout == "an end within an item":
        text = text.replace('"b": 1', "")
        first, second = text.split('"status": {', 1)
        body, end = second.split("\n            }\n", 1)
        path.write_text(first + '"status": {' + body + "\n        },\n" + '"spec": {}' + end)
        expected[0]["spec"] = {}
    found = [each.document for each in documents(str(path)) if hasattr(each, "document")]
    if layout == "other kind":
        assert not found
        assert len(load([str(path)]).world.view.nodes) == 6
    else:
        assert [each.value for each in found] == expected


@pytest.mark.parametrize("block", [700, 1 << 20])
def test_broken_json_has_the_line_of_the_whole_file(write, monkeypatch, block):
    """Also after many items that were read in blocks."""
    monkeypatch.setattr(yaml_reader, "_JSON_BLOCK", block)
    path = Path(write(a_cluster(nodes=6, pods=0), "json"))
    lines = path.read_text().splitlines()
    at = max(n for n, line in enumerate(lines) if '"kind": "Node"' in line)
    lines[at] = '"kind" "Node",'
    path.write_text("\n".join(lines))
    with pytest.raises(BadInput, match=rf"list.json: line {at + 1}, column 8: not valid JSON"):
        load([str(path)])


@pytest.mark.parametrize("block", [700, 1 << 20])
def test_a_comma_after_the_last_item_is_no_json(write, monkeypatch, block):
    """Where a block ends behind it, too."""
    monkeypatch.setattr(yaml_reader, "_JSON_BLOCK", block)
    path = Path(write(a_cluster(nodes=6, pods=0), "json"))
    path.write_text(path.read_text().replace("}\n    ],", "},\n    ],"))
    with pytest.raises(BadInput, match=r"list.json: line \d+, column 5: not valid JSON"):
        load([str(path)])


@pytest.mark.parametrize("block", [700, 1 << 20])
@pytest.mark.parametrize("second", ["a list", "a comma"])
def test_items_read_in_blocks_are_not_read_again_as_yaml(write, monkeypatch, block, second):
    """A file of YAML may have documents after a list in JSON, and a comma after the last item."""
    monkeypatch.setattr(yaml_reader, "_JSON_BLOCK", block)
    text = Path(write(a_cluster(nodes=6, pods=0), "json")).read_text()
    more = Path(write([a_node("n9")], "json")).read_text()
    path = Path(write([]))
    if second == "a list":
        path.write_text(f"{text}\n---\n{more}")
    else:
        path.write_text(text.replace("}\n    ],", "},\n    ],"))
    manifest = load([str(path)])
    assert not [text for text in manifest.warnings if "found twice" in text]
    assert len(manifest.world.view.nodes) == (7 if second == "a list" else 6)


@pytest.mark.parametrize(
    ("value", "words"), [(b"1e999", "Number out of range"), (b'"\xff"', "can't decode byte 0xff")]
)
@pytest.mark.parametrize("field", ["cpu", "example.com/slot"])
def test_a_value_that_cannot_be_decoded_is_named_by_its_item(write, value, words, field):
    """It is in a field that is read."""
    path = Path(write([a_node("n0"), a_node("n1", {}, **{field: 7})], "json"))
    path.write_bytes(path.read_bytes().replace(b'"%b": 7' % field.encode(), b'"%b": %b' % (field.encode(), value)))  # fmt: skip
    with pytest.raises(BadInput, match=rf"list.json, document 1, item 2: .*{words}"):
        load([str(path)])


def unusual_objects():
    """Nodes and pods with all that a direct reader might overlook."""
    node, pod = a_node("n", {RACK: "r"}, gpu=8), a_pod("p", node="n")
    yield node
    yield pod
    yield node | {"metadata": node["metadata"] | {"namespace": "somewhere"}}
    yield node | {"metadata": {"generateName": "n-"}}
    yield node | {"metadata": node["metadata"] | {"labels": {"gang-extender.dev/pod-gruop": "x"}}}
    yield node | {"metadata": node["metadata"] | {"annotations": {"gang-extender.dev/tree": "x"}}}
    yield node | {"status": {"allocatable": None, "capacity": {"cpu": 8, "pods": 1.5}}}
    yield node | {"spec": {"taints": [{"key": "a", "effect": "NoSchedule", "value": None}]}}
    yield node | {"status": {"allocatable": {"cpu": [1]}}}
    yield node | {"apiVersion": "v2"}
    yield node | {"kind": "Nod"}
    for namespace in ("", "A", None, 7):
        yield pod | {"metadata": {"name": "p", "namespace": namespace}}
    yield pod | {"metadata": {"name": "p"}}
    yield pod | {"metadata": {"namespace": "ns"}}
    template = {"metadata": {"labels": {"gang-extender.dev/treee": "x"}}}
    volumes = [{"name": "v", "ephemeral": {"volumeClaimTemplate": template}}]
    yield pod | {"spec": pod["spec"] | {"volumes": volumes}}
    yield pod | {"spec": pod["spec"] | {"priority": "high"}}


@pytest.mark.parametrize("number", range(len([*unusual_objects()])))
def test_nodes_and_pods_in_json_are_read_as_others(number):
    """The entry, with its notes, or the refusal of the object that was decoded to dicts first."""
    value = [*unusual_objects()][number]
    item = JsonItem(where="f", text=msgspec.Raw(msgspec.json.encode(value)))

    def outcome(document):
        try:
            return entries_in([document], Role.CLUSTER)
        except BadInput as fault:
            return str(fault)

    assert outcome(item) == outcome(Document(where="f", value=value))


def test_equal_parts_of_nodes_are_one_object():
    """A large cluster has few classes of nodes."""
    items = [a_node(f"n{n}", {RACK: "".join(["r", "0"])}, gpu=8 + n % 2) for n in range(4)]
    raw = [JsonItem(where="f", text=msgspec.Raw(msgspec.json.encode(item))) for item in items]
    first, second, third, _ = (entry.obj for entry in entries_in(raw, Role.CLUSTER))
    assert first.status is third.status
    assert first.status is not second.status
    assert first.metadata.labels[RACK] is second.metadata.labels[RACK]


def test_a_list_gives_the_cluster_of_its_documents(write, tmp_path):
    """10 nodes and 100 pods: the view of the list is that of a file with a document for each."""
    path = tmp_path / "documents.yaml"
    path.write_text(yaml.safe_dump_all(a_cluster()))
    view = load([write(a_cluster())]).world.view
    assert view == load([str(path)]).world.view
    assert (len(view.nodes), len(view.pods)) == (10, 100)


def test_aliases_reach_across_items(write):
    """An alias stands for what an earlier item has."""
    path = write([])
    items = "".join(
        f"- apiVersion: v1\n  kind: Node\n  metadata: {{name: n{n}, labels: {'&a ' if n == 0 else ''}{{x: y}}}}\n"
        for n in range(4)
    )
    items += "- apiVersion: v1\n  kind: Node\n  metadata: {name: last, labels: *a}\n"
    whole = Path(path)
    whole.write_text(f"apiVersion: v1\nitems:\n{items}kind: List\n")
    assert load([path]).world.view.nodes["last"].labels == {"x": "y"}
    assert len(load([path]).world.view.nodes) == 5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("name: p99\n", "name: p99\n    name: again\n"), r'line \d+: key "name" is a duplicate'),
        (("name: p99\n", "name: 'p99\n"), r"list.yaml: line \d+, column \d+: not valid YAML"),
        (("name: p99\n", "name: [1]\n"), r"document 1, item 110: Pod.*metadata.name: expected text, found \[1\]"),
        (("kind: List\n", "kind: List\nitems: []\n"), r'line \d+: key "items" is a duplicate'),
        (("kind: List\n", "kind: List\nkind: PodList\n"), r'line \d+: key "kind" is a duplicate'),
    ],
    ids=range(5),
)  # fmt: skip
def test_what_is_wrong_with_an_item_has_its_place_in_the_file(write, change, words):
    """The line of the whole file, or the number of the item."""
    path = write(a_cluster())
    text = Path(path).read_text()
    assert change[0] in text
    Path(path).write_text(text.replace(change[0], change[1]))
    with pytest.raises(BadInput, match=words):
        load([path])


def test_a_document_after_a_list_is_read(write):
    """A file with several documents is no list of kubectl alone."""
    path = Path(write(a_cluster(nodes=2, pods=3)))
    path.write_text(path.read_text() + "---\n" + yaml.safe_dump(a_node("n9")))
    assert set(load([str(path)]).world.view.nodes) == {"n0", "n1", "n9"}
