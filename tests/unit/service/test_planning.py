"""No worker of the planner outlives its service."""

from __future__ import annotations

import multiprocessing
import os

import pytest

from extender.service.planning import _begin_worker


@pytest.mark.parametrize(("lives", "code"), [(True, 0), (False, 1)])
def test_a_worker_ends_whose_service_died_while_it_started(lives, code):
    """The kernel's signal is asked for too late then; 27 kills of a soak left five workers behind."""
    service = os.getpid() if lives else os.getppid()
    worker = multiprocessing.get_context("spawn").Process(target=_begin_worker, args=(service,))
    worker.start()
    worker.join()
    assert worker.exitcode == code
