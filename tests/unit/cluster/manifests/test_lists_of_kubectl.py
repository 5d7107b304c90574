"""Lists as kubectl prints them are read item by item, and give what reading the whole file gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from extender.cluster.manifests import yaml_reader
from extender.cluster.manifests.manifest_loader import load
from extender.cluster.manifests.yaml_reader import documents, read_file
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


def the_items(path):
    (whole,) = read_file(path)
    return whole.value["items"]


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_items_are_those_of_the_whole_file(write, monkeypatch, form):
    """Every item with its place; the progress of YAML ends at the size of the file."""
    monkeypatch.setattr(yaml_reader, "_REPORT_EVERY", 5_000)
    path = write(a_cluster(nodes=10, pods=200), form)
    states = []
    items = list(documents(path, lambda *state: states.append(state)))
    assert [item.value for item in items] == the_items(path)
    assert items[7].where == f"{path}, document 1, item 8"
    if form == "json":
        return
    read = [done for _, done, _ in states]
    assert len(read) > 5
    assert read == sorted(read)
    assert states[-1] == (path, Path(path).stat().st_size, Path(path).stat().st_size)


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
