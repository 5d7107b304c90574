"""What a user, an operator or kube-scheduler can see is as it was approved; a change of it shows in a diff."""

from __future__ import annotations

import pytest

from tests import public_surface
from tests.support.logs.postgres import run


def compare(subject, lines):
    changed = public_surface.difference(subject, lines)
    if changed:
        pytest.fail(changed, pytrace=False)


@pytest.mark.parametrize("subject", sorted(public_surface.SUBJECTS))
def test_the_surface_is_the_approved_one(subject):
    """Names, fields, types, flags and help are those of tests/golden/public_surface."""
    compare(subject, public_surface.SUBJECTS[subject]())


@pytest.mark.postgres
def test_the_database_is_the_approved_one(empty_database_url):
    """Tables, columns, views, functions, triggers, rights and comments of schema gx, freshly migrated."""
    found = run(public_surface.database(empty_database_url))
    assert sorted(found) == sorted(public_surface.DATABASE_SUBJECTS)
    for subject, lines in found.items():
        compare(subject, lines)


def test_each_approved_file_has_its_subject():
    """No approved file is left over that nothing is compared with."""
    files = sorted(path.name for path in public_surface.APPROVED.iterdir())
    subjects = {*public_surface.SUBJECTS, *public_surface.DATABASE_SUBJECTS}
    assert files == sorted(f"{subject}.txt" for subject in subjects)


def test_a_change_is_shown_line_by_line_with_the_command_that_approves_it(tmp_path):
    """The report is a unified diff: what is gone, what is new, nothing else, and how to approve it."""
    approved = public_surface.text_of(["a", "metric_old", "z", "unchanged"])
    (tmp_path / "metrics.txt").write_text(approved)
    shown = public_surface.difference("metrics", ["a", "metric_new", "z", "unchanged"], tmp_path)
    assert shown.splitlines()[0] == "The public surface has changed: metrics."
    assert "\n-metric_old\n+metric_new\n" in shown
    assert "unchanged" not in shown
    assert shown.endswith("make approve")
    same = ["a", "metric_old", "z", "unchanged"]
    assert public_surface.difference("metrics", same, tmp_path) == ""


def test_a_new_subject_is_not_approved_by_its_absence(tmp_path):
    """Without an approved file everything is new."""
    assert "\n+only" in public_surface.difference("new", ["only"], tmp_path)
