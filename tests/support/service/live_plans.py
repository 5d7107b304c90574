"""The service of plan queries on the cluster of a stage, in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from extender.cluster.manifests.plan_request_body import answer_plan_request
from extender.queries.plan.plan_service import PlanService
from tests.support.service.manifest_builders import an_object

T = TypeVar("T")
CLASSES = (
    json.dumps(an_object("PriorityClass", "high", "scheduling.k8s.io/v1", "", value=1000)).encode(),
)


async def answered_here(_request: object, _path: str) -> None:
    """Be the `to_leader` of a replica that leads."""


def live_plans(stage: Any) -> PlanService:
    """Return the service; the cluster of the stage gets the PriorityClass `high`."""
    stage.cluster.priority_classes = lambda: CLASSES

    async def run(work: Callable[..., T], *args: object) -> T:
        return work(*args)

    return PlanService(
        stage.cluster, stage.leader, stage.barriers.started, stage.clock, run, answer_plan_request
    )
