"""What a reader sees of which namespace."""

from __future__ import annotations

import pytest

from extender.core.model.visibility import Visibility


def test_everything_is_seen_by_all():
    """A reader without a limit sees every namespace, and objects without one."""
    visibility = Visibility.all()
    assert visibility.everything
    assert visibility.sees("default")
    assert visibility.sees("")


def test_only_the_own_namespaces_are_seen():
    """A reader with rights in some namespaces sees these and no other."""
    visibility = Visibility.of(["team-b", "team-a", "team-a"])
    assert not visibility.everything
    assert visibility.sees("team-a")
    assert visibility.sees("team-b")
    assert not visibility.sees("team")
    assert not visibility.sees("")


@pytest.mark.parametrize("name", ["", "*"])
def test_no_list_of_names_gives_everything(name):
    """An empty name and a wildcard in a list of namespaces give no rights."""
    visibility = Visibility.of([name])
    assert not visibility.everything
    assert not visibility.sees(name)
    assert not visibility.sees("default")


def test_equal_rights_are_the_same_key():
    """Order and duplicates make no difference, so that a cache has one entry for equal rights."""
    assert Visibility.of(["b", "a"]) == Visibility.of(["a", "b", "b"])
    assert hash(Visibility.of(["b", "a"])) == hash(Visibility.of(["a", "b"]))
    assert Visibility.of([]) != Visibility.all()
