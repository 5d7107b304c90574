"""/v1/nodes and the tree of a gang over HTTP, from what the cluster shows now."""

from __future__ import annotations

from tests.integration.http.test_scheduler_verbs import Served
from tests.support.service.manifest_builders import GPU, RACK, a_gang, a_node, a_pod


async def test_nodes_and_trees_have_position_and_tag():
    """What is there now; nothing is sent twice to who has it."""
    objects = [a_node("n1", {RACK: "r1"}, gpu=8), a_pod("alone", node="n1", requests={GPU: 2}),
               *a_gang("g", pods=2, topo=RACK)]  # fmt: skip
    async with Served(*objects) as served:
        await served.ready()
        reply = await served.client.get("/v1/nodes")
        answer = await reply.json()
        assert (reply.status, answer["topology_keys"]) == (200, [RACK])
        assert answer["nodes"][0]["ordinary"] == {GPU: 2, "pods": 1}
        assert reply.headers["X-Log-Position"] == str(served.stage.leader.committed.position)
        again = await served.client.get(
            "/v1/nodes", headers={"If-None-Match": reply.headers["ETag"]}
        )
        assert again.status == 304
        reply = await served.client.get("/v1/gangs/default/g/tree")
        (group,) = (await reply.json())["groups"]
        assert (group["minimum"], group["topology"], len(group["members"])) == (2, [RACK], 2)


async def test_what_is_not_there_and_what_is_not_known_is_refused():
    """404 and 400 name it."""
    async with Served(a_node("n1", gpu=8)) as served:
        reply = await served.client.get("/v1/gangs/default/absent/tree")
        assert (reply.status, reply.content_type) == (404, "application/problem+json")
        assert "gang default/absent" in (await reply.json())["detail"]
        reply = await served.client.get("/v1/nodes?rack=r1")
        assert reply.status == 400
        assert "rack" in (await reply.json())["detail"]
