"""Fixtures that every folder may use. The process of a test that its timeout does not end is ended here."""

import faulthandler
import gc
import os
import signal
import sys
import zlib

import pytest

# hypothesis_profile also loads the profile that tests take their settings from
from tests.support import cpu_limit, failure_report, hypothesis_profile
from tests.support.logs.postgres import *  # noqa: F403 -- fixtures are found by name

# Settings of the shell that runs the tests, such as the service that commands ask; the tests' own variables begin with GX_TEST_.
for variable in [name for name in os.environ if name.startswith("GANG_EXTENDER_")]:
    del os.environ[variable]

AFTER_TIMEOUT_S = 60.0
STDERR = pytest.StashKey[int]()


def pytest_addoption(parser):
    parser.addoption(
        "--part",
        metavar="K/N",
        help="of the tests marked full, and of those of hypothesis in the full profile, run only the K-th of N parts",
    )


@pytest.hookimpl(trylast=True)  # hypothesis marks its tests in this hook
def pytest_collection_modifyitems(config, items):
    """Leave out what the other parts run: by the name of a test, so that each part is the same in every run.

    Tests with the same `full("name")` run in the same part: they share what is expensive to start.
    """
    part = config.getoption("part")
    if not part:
        return
    number, parts = map(int, part.split("/"))
    marks = {"full", *(["hypothesis"] if hypothesis_profile.PROFILE == "full" else [])}
    kept, left_out = [], []
    for item in items:
        dividing = [mark for mark in item.iter_markers() if mark.name in marks]
        name = next(
            (mark.args[0] for mark in dividing if mark.name == "full" and mark.args), item.nodeid
        )
        elsewhere = dividing and zlib.crc32(name.encode()) % parts != number - 1
        (left_out if elsewhere else kept).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


def pytest_configure(config):
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # a shell starts what is in its background so; commands that tests end by Ctrl-C would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # while tests run, what is written to standard error itself is captured
    config.stash[STDERR] = os.dup(sys.__stderr__.fileno())


def pytest_unconfigure(config):
    os.close(config.stash[STDERR])


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect no garbage meanwhile: what is imported and collected stays, and would be looked at again and again (1 s of CPU)."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish():
    """Exempt imported and collected objects from garbage collection, which would take 0.2 s of CPU each time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        report.sections.extend(failure_report.sections(item.config))
    return report


def pytest_terminal_summary(terminalreporter):
    reports = (report for reports in terminalreporter.stats.values() for report in reports)
    if lines := cpu_limit.expensive(reports):
        terminalreporter.section(f"unit tests of more than {cpu_limit.LIMIT_S} s of CPU")
        terminalreporter.write_line("\n".join(lines))


# Each phase by itself: after a failed one, pytest-timeout and pytest's own faulthandler_timeout no longer watch the test.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item):
    failure_report.begin()
    return (yield from _run_with_deadline(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item):
    return (yield from _run_with_deadline(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item):
    return (yield from _run_with_deadline(item))


def _run_with_deadline(item):
    """Run a phase of a test; end this process, with the stacks of its threads, when the timeout does not end the test.

    pytest-timeout raises an error in the main thread, once. Code that waits outside Python does not see it, asyncio gives
    it to the task or callback that happens to run, and what waits for that task, or in a teardown after it, goes on waiting.
    """
    marker = item.get_closest_marker("timeout")
    timeout_s = float(marker.args[0] if marker and marker.args else item.config.getini("timeout"))
    faulthandler.dump_traceback_later(
        timeout_s + AFTER_TIMEOUT_S, file=item.config.stash[STDERR], exit=True
    )
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
