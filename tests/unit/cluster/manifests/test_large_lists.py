"""Large lists of kubectl are read piece by piece, and give what reading the whole file gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from extender.cluster.manifests import large_lists
from extender.cluster.manifests.large_lists import documents
from extender.cluster.manifests.manifest_loader import load
from extender.cluster.manifests.yaml_reader import read_file
from extender.core.model.errors import BadInput
from tests.support.service.manifest_builders import RACK, a_node, a_pod


def a_cluster(nodes=50, pods=500):
    """Nodes and running pods, some with texts that look like the places where a list is cut."""
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
def write(tmp_path, monkeypatch):
    """Write a list as kubectl prints it; files count as large, pieces are small."""
    monkeypatch.setattr(large_lists, "LARGE", 1_000)
    monkeypatch.setattr(large_lists, "PIECE", 20_000)

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
@pytest.mark.parametrize("processors", [1, 2])
def test_the_pieces_give_what_the_whole_file_gives(write, monkeypatch, form, processors):
    """Every item with its place, in one process and in two; the progress ends at the size of the file."""
    monkeypatch.setattr(large_lists.os, "sched_getaffinity", lambda _: set(range(processors)))
    path = write(a_cluster(nodes=20, pods=200), form)
    seen = []
    found = list(documents(path, lambda *state: seen.append(state)))
    assert [one.value for one in found] == the_items(path)
    assert found[7].where == f"{path}, document 1, item 8"
    assert seen[0][1] == 0
    assert seen[-1][1] == seen[-1][2]
    assert [one[1] for one in seen] == sorted(one[1] for one in seen)
    assert form == "json" or len(seen) > 5


def test_a_cluster_in_pieces_is_the_same_cluster(write, monkeypatch):
    """50 nodes and 500 pods: the view of the pieces is that of the whole file."""
    monkeypatch.setattr(large_lists.os, "sched_getaffinity", lambda _: {0})
    path = write(a_cluster())
    pieces = load([path])
    monkeypatch.setattr(large_lists, "LARGE", 1 << 40)
    assert pieces.world.view == load([path]).world.view
    assert (len(pieces.world.view.nodes), len(pieces.world.view.pods)) == (50, 500)


def test_a_list_with_aliases_is_read_as_a_whole(write, monkeypatch):
    """An alias in a later piece stands for what an earlier piece has."""
    monkeypatch.setattr(large_lists.os, "sched_getaffinity", lambda _: {0})
    path = write([])
    items = "".join(
        f"- apiVersion: v1\n  kind: Node\n  metadata: {{name: n{n}, labels: {'&a ' if n == 0 else ''}{{x: y}}}}\n"
        for n in range(400)
    )
    items += "- apiVersion: v1\n  kind: Node\n  metadata: {name: last, labels: *a}\n"
    whole = Path(path)
    whole.write_text(f"apiVersion: v1\nitems:\n{items}kind: List\n")
    assert whole.stat().st_size > large_lists.PIECE
    assert load([path]).world.view.nodes["last"].labels == {"x": "y"}
    assert len(load([path]).world.view.nodes) == 401


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("name: p499\n", "name: p499\n    name: again\n"), r'line \d+: key "name" is a duplicate'),
        (("name: p499\n", "name: 'p499\n"), r"list.yaml: line \d+, column \d+: not valid YAML"),
        (("name: p499\n", "name: [1]\n"), r"document 1, item 550: Pod.*metadata.name: expected text, found \[1\]"),
    ],
    ids=range(3),
)  # fmt: skip
def test_what_is_wrong_with_an_item_has_its_place_in_the_file(write, monkeypatch, change, words):
    """The line of the whole file, or the number of the item."""
    monkeypatch.setattr(large_lists.os, "sched_getaffinity", lambda _: {0})
    path = write(a_cluster())
    text = Path(path).read_text()
    assert change[0] in text
    Path(path).write_text(text.replace(change[0], change[1]))
    with pytest.raises(BadInput, match=words):
        load([path])


def test_other_large_files_are_read_as_a_whole(tmp_path, write):
    """Several documents are no list of kubectl."""
    path = tmp_path / "docs.yaml"
    path.write_text(yaml.safe_dump_all(a_cluster(nodes=5, pods=50)))
    assert len(list(documents(str(path)))) == 55
