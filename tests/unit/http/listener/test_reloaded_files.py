"""Files are read again when they have changed and come to rest; what cannot be used is not used."""

from __future__ import annotations

import os

import pytest

from extender.core.model.errors import BadInput
from extender.http.listener.tls_contexts import ReloadedFiles
from extender.telemetry import METRICS


class Pair:
    """A value made from two files that must have the same text."""

    def __init__(self, folder):
        self.paths = [folder / "tls.crt", folder / "tls.key"]
        self.loads = 0

    def load(self):
        self.loads += 1
        texts = {path.read_text() if path.exists() else "" for path in self.paths}
        if len(texts) > 1 or "" in texts:
            raise BadInput(f"{self.paths[0]} does not fit")
        return texts.pop()

    def write(self, *texts):
        for path, text in zip(self.paths, texts, strict=True):
            path.write_text(text)

    def reloaded(self):
        return ReloadedFiles("test", [str(path) for path in self.paths], self.load)


@pytest.fixture
def pair(tmp_path):
    made = Pair(tmp_path)
    made.write("one", "one")
    return made


def counted(result):
    return METRICS.tls_reloads.labels("test", result)._value.get()


def test_files_that_do_not_change_are_read_once(pair):
    files = pair.reloaded()
    for _ in range(5):
        files.look()
    assert (files.current, pair.loads) == ("one", 1)


def test_new_files_are_used_when_two_looks_found_the_same(pair):
    """The first look after a change may be in the middle of it."""
    files, before = pair.reloaded(), counted("loaded")
    pair.write("second", "one")
    files.look()
    pair.write("second", "second")
    files.look()
    assert (files.current, pair.loads) == ("one", 1)
    files.look()
    assert (files.current, pair.loads) == ("second", 2)
    assert counted("loaded") == before + 1


def test_files_that_cannot_be_used_keep_the_old_ones_and_are_reported_once(pair, caplog):
    """With the reason; when they are mended, they are used."""
    files, before = pair.reloaded(), counted("failed")
    pair.write("third", "other")
    for _ in range(5):
        files.look()
    assert (files.current, counted("failed")) == ("one", before + 1)
    (record,) = [one for one in caplog.records if "not usable" in one.message]
    assert record.error == f"{pair.paths[0]} does not fit"
    pair.write("third", "third")
    files.look()
    files.look()
    assert files.current == "third"


def test_a_file_that_is_removed_keeps_the_old_one(pair):
    files = pair.reloaded()
    pair.paths[1].unlink()
    files.look()
    files.look()
    assert files.current == "one"
    pair.write("fourth", "fourth")
    files.look()
    files.look()
    assert files.current == "fourth"


def test_a_link_that_leads_elsewhere_is_a_change(tmp_path):
    """As the kubelet does it: tls.crt -> ..data/tls.crt, and ..data -> a new folder, in one rename."""
    pair = Pair(tmp_path)
    for name in ("first", "other"):
        (tmp_path / name).mkdir()
        for file in ("tls.crt", "tls.key"):
            (tmp_path / name / file).write_text(name)
    (tmp_path / "..data").symlink_to("first")
    for path in pair.paths:
        path.symlink_to(f"..data/{path.name}")
    files = pair.reloaded()
    (tmp_path / "..next").symlink_to("other")
    os.replace(tmp_path / "..next", tmp_path / "..data")  # noqa: PTH105 -- Path.replace follows no link either
    files.look()
    files.look()
    assert files.current == "other"


def test_a_change_during_reading_is_read_again(pair):
    """What was read half old, half new is not used, also if it looks right."""
    files = pair.reloaded()
    pair.write("second", "second")
    files.look()
    read = pair.load

    def load_and_change():
        found = read()
        pair.write("latest!", "latest!")
        return found

    files._load = load_and_change
    files.look()
    assert files.current == "one"
    files._load = read
    files.look()
    files.look()
    assert files.current == "latest!"


def test_at_the_start_there_is_no_old_one_to_keep(pair):
    pair.write("one", "two")
    with pytest.raises(BadInput, match="does not fit"):
        pair.reloaded()
