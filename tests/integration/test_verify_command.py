"""`verify` and `keys` as a user runs them: what they print, and their exit codes."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from extender.cli.main import app
from extender.core.log.anchors import encode_anchors
from tests.support.logs.postgres import run
from tests.support.logs.tampered_log import TAMPERINGS, FilledLog
from tests.support.logs.tampering import tamper

pytestmark = pytest.mark.postgres


@pytest.fixture
def log(database_url):
    return run(FilledLog(database_url).fill())


def called(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def options(log, tmp_path):
    """The options with a saved ConfigMap and the key."""
    (tmp_path / "anchor.key").write_bytes(log.key)
    data = {"kind": "ConfigMap", "data": encode_anchors(log.anchors)}
    (tmp_path / "log.yaml").write_text(json.dumps(data))
    url = ("--database-url", log.url)
    return (*url, "--anchors", tmp_path / "log.yaml", "--keys", tmp_path / "anchor.key")


def test_an_untouched_log(log, options):
    done = called("verify", *options)
    assert done.exit_code == 0, done.output
    assert "no gap, chain unbroken" in done.output
    assert "3 anchors of " in done.output
    assert "definitions of the schema compared" in done.output
    assert "signature" not in done.output


def test_a_rewritten_log(log, options):
    """Exit 1; kind, position and what to do, as text and as JSON."""
    run(TAMPERINGS["rewritten"](log))
    done = called("verify", *options)
    assert done.exit_code == 1
    assert "rewritten at position 6: " in done.output
    assert "what to do: " in done.output
    found = json.loads(called("verify", *options, "-o", "json").output)
    assert [finding["kind"] for finding in found["findings"]] == ["rewritten"]


def test_the_cause_is_printed_and_what_follows_is_counted(log, options):
    """The first advice is to keep the database, before any that changes it."""
    run(TAMPERINGS["rewritten"](log))
    run(tamper(log.url, "UPDATE gx.placement SET node = 'elsewhere' WHERE from_position >= 6"))
    run(TAMPERINGS["forged-definition"](log))
    done = called("verify", *options)
    assert done.exit_code == 1
    first, advice, second, _ = done.output.splitlines()[1:5]
    assert first.startswith("rewritten at position 6: ")
    assert "forged-projection" in first
    assert "what to do: keep this database, copy it first" in advice
    assert second.startswith("forged-definition at query of view gx.v_pending: ")
    assert "\nforged-projection" not in done.output
    found = json.loads(called("verify", *options, "-o", "json").output)["findings"]
    assert [finding["kind"] for finding in found] == ["rewritten", "forged-definition"]
    assert found[0]["weaker"]["forged-projection"] > 5
    assert found[1]["object"] == "query of view gx.v_pending"


def test_a_schema_that_it_does_not_know_is_named(log, options):
    run(tamper(log.url, "UPDATE gx.migration SET version_num = '9999'"))
    done = called("verify", *options)
    assert done.exit_code == 0, done.output
    assert (
        "were not compared: the schema is of a version that this one does not know" in done.output
    )


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER SCHEMA gx RENAME TO other",
        "ALTER TABLE gx.event RENAME COLUMN actor TO author",
        "ALTER TABLE gx.event RENAME TO happening",
        "DROP TABLE gx.migration",
    ],
)
def test_a_schema_that_was_renamed_is_kept(log, options, statement):
    """It looks like one of an older version; nothing that changes it is advised."""
    run(tamper(log.url, statement))
    done = called("verify", *options)
    assert done.exit_code == 1, done.output
    first, advice = done.output.splitlines()
    assert first.startswith("the log cannot be verified: ")
    assert advice.strip().startswith("what to do: keep this database, copy it first; ")
    assert "db migrate" not in done.output


def test_without_anchors_it_names_what_is_not_found(log):
    """As it was before: the chain alone; and what that does not show."""
    run(TAMPERINGS["rewritten"](log))
    done = called("verify", "--database-url", log.url)
    assert done.exit_code == 0
    assert "no anchors were given" in done.output


def test_without_keys_it_prints_that_signatures_were_not_checked(log, options):
    assert "signatures of the anchors were not checked" in called("verify", *options[:4]).output


@pytest.mark.parametrize("text", ["", "x: [", '{"data": {"position": "1"}}', "{}"])
def test_a_file_that_has_no_anchors_is_refused(log, tmp_path, text):
    path = tmp_path / "other.yaml"
    path.write_text(text)
    done = called("verify", "--database-url", log.url, "--anchors", path)
    assert done.exit_code != 0
    assert "--anchors" in str(done.exception)


def test_keys_are_made_and_replaced(tmp_path):
    """The private file only for its owner; nothing is overwritten; --rotate keeps the old key."""
    path = tmp_path / "anchor.key"
    first = called("keys", path)
    assert first.exit_code == 0, first.output
    assert path.stat().st_mode & 0o777 == 0o600
    before = path.read_bytes()
    assert called("keys", path).exit_code != 0
    assert path.read_bytes() == before
    again = called("keys", path, "--rotate")
    assert "is still accepted" in again.output
    assert path.read_bytes().endswith(before)
    public = path.with_name("anchor.key.pub").read_text()
    assert public.count("BEGIN PUBLIC KEY") == 2
    assert "PRIVATE" not in public


def test_rotate_needs_a_key(tmp_path):
    assert called("keys", tmp_path / "none", "--rotate").exit_code != 0
