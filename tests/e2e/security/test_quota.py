"""The example of a ResourceQuota counts our groups (M3)."""

from __future__ import annotations

import pytest

from tests.controlplane.api import ApiError, Object
from tests.controlplane.objects import a_namespace
from tests.e2e.security.attempts import a_group
from tests.e2e.security.conftest import Secured, documents
from tests.support.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.kubernetes("1.37")]

TENANT = "tenant"
QUOTA = f"/api/v1/namespaces/{TENANT}/resourcequotas"
KINDS = ("PodGroup", "CompositePodGroup")


async def test_groups_beyond_the_quota_are_refused(secured: Secured) -> None:
    """As many groups as the example allows, with smaller numbers; the next one is refused, and other namespaces are not."""
    (quota,) = documents("quota-example")
    counts = {f"count/{kind.lower()}s.gang-extender.dev" for kind in KINDS}
    assert counts <= quota["spec"]["hard"].keys()
    quota["metadata"]["namespace"] = TENANT
    quota["spec"]["hard"] = dict.fromkeys(quota["spec"]["hard"], "2")
    admin = secured.admin
    await admin.create(a_namespace(TENANT))
    secured.plane.start_controller_manager(["resourcequota-controller"])
    try:
        await admin.post(QUOTA, quota)

        async def counted() -> bool:
            found = await admin.get(f"{QUOTA}/gang-extender-groups")
            return counts <= found.get("status", {}).get("used", {}).keys()

        await eventually(counted)
        for kind in KINDS:
            root = f"/apis/gang-extender.dev/v1alpha1/namespaces/{TENANT}/{kind.lower()}s"
            for number in range(2):
                await admin.post(root, a_tenants(kind, f"g{number}"))

            async def refused(root: str = root, kind: str = kind) -> bool:
                try:
                    await admin.post(root, a_tenants(kind, "g2"))
                except ApiError as error:
                    if "exceeded quota: gang-extender-groups" not in str(error):
                        raise
                    return True
                await admin.delete(f"{root}/g2")
                return False

            # the controller that counts may write a number that is older than the last groups
            await eventually(refused)
            elsewhere = a_group(kind, name="elsewhere")
            await admin.post(root.replace(TENANT, "default"), elsewhere, dryRun="All")
    finally:
        secured.plane.stop_controller_manager()
        await admin.delete(f"{QUOTA}/gang-extender-groups")
        for kind in KINDS:
            await admin.delete(
                f"/apis/gang-extender.dev/v1alpha1/namespaces/{TENANT}/{kind.lower()}s"
            )


def a_tenants(kind: str, name: str) -> Object:
    group = a_group(kind, name=name)
    group["metadata"]["namespace"] = TENANT
    return group
