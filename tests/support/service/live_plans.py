"""The service of plan queries on the cluster of a stage, in this process."""

from __future__ import annotations

import json
from typing import Any

from extender.cluster.manifests.plan_request_body import answer_plan_request
from extender.queries.plan.plan_service import LiveInput, PlanService
from tests.support.service.manifest_builders import an_object

CLASSES = (
    json.dumps(an_object("PriorityClass", "high", "scheduling.k8s.io/v1", "", value=1000)).encode(),
)


def live_plans(stage: Any) -> PlanService:
    """Return the service; the cluster of the stage gets the PriorityClass `high`."""
    stage.cluster.priority_classes = lambda: CLASSES

    async def run(body: bytes, ours: LiveInput | None) -> bytes:
        return answer_plan_request(body, ours)

    return PlanService(stage.cluster, stage.leader, stage.barriers, stage.clock, run)
