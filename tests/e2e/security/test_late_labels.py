"""When a webhook adds the label of a group, which the mutating policies do not see (comment of admission-policy.yaml)."""

from __future__ import annotations

import base64
import contextlib
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from deploy.demo.ports import free_port
from tests.controlplane.api import Api, ApiError, Object
from tests.controlplane.objects import GATE, a_pod
from tests.e2e.scenarios.proxy import stop
from tests.e2e.security.attempts import LABEL, PODS
from tests.e2e.security.conftest import BINDINGS, Secured
from tests.support.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.kubernetes("1.37", "1.36")]

WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
ASKS = "example.com/label-me"  # value of a label: the name of the group that the webhook writes
POINTER = "/metadata/labels/gang-extender.dev~1pod-group"


async def review(request: web.Request) -> web.Response:
    """Answer an AdmissionReview: write the label of the group that a pod asks for."""
    asked = msgspec.json.decode(await request.read())["request"]
    group = asked["object"]["metadata"]["labels"][ASKS]
    patch = [{"op": "add", "path": POINTER, "value": group}]
    answer = {
        "uid": asked["uid"],
        "allowed": True,
        "patchType": "JSONPatch",
        "patch": base64.b64encode(msgspec.json.encode(patch)).decode(),
    }
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}
    return web.json_response(body, dumps=lambda value: msgspec.json.encode(value).decode())


@contextlib.asynccontextmanager
async def a_webhook(api: Api, folder: Path) -> AsyncIterator[None]:
    """Serve a webhook for pods with the label `ASKS`; kube-apiserver calls it after the mutating policies."""
    key, certificate, port = folder / "webhook.key", folder / "webhook.crt", free_port()
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    command += ["-subj", "/CN=webhook", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    application = web.Application()
    application.router.add_post("/", review)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls).start()
    webhook = {
        "name": "late.example.com",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "reinvocationPolicy": "IfNeeded",
        "objectSelector": {"matchExpressions": [{"key": ASKS, "operator": "Exists"}]},
        "rules": [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["pods"],
            }
        ],
        "clientConfig": {
            "url": f"https://127.0.0.1:{port}/",
            "caBundle": base64.b64encode(certificate.read_bytes()).decode(),
        },
    }
    await api.post(
        WEBHOOKS,
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": "late"},
            "webhooks": [webhook],
        },
    )
    try:
        yield
    finally:
        await api.delete(f"{WEBHOOKS}/late")
        await stop(runner)


async def dry_run(api: Api, **labels: str) -> tuple[Object, str]:
    """Create a pod as a dry run, and return what it becomes, or the refusal.

    Args:
        api: As an administrator.
        labels: `asks` of the webhook for a group, `group` names one itself.
    """
    keys = {"asks": ASKS, "group": LABEL}
    metadata = {"labels": {keys[name]: value for name, value in labels.items()}}
    try:
        return await api.post(PODS, a_pod("late", metadata=metadata), dryRun="All"), ""
    except ApiError as refusal:
        return {}, str(refusal)


async def test_a_label_that_a_webhook_adds_comes_too_late_and_is_refused(
    secured: Secured, tmp_path: Path
) -> None:
    """The mutating policy is not called again for a pod that named no group before; the validating one refuses it.

    Without that one the pod would be stored as a member without gate and markers, and be bound alone. A pod that named a
    group before the webhook is called again: it keeps its gate.
    """
    await secured.install_policies()
    admin = secured.admin
    async with a_webhook(admin, tmp_path):

        async def called() -> str:
            return (await dry_run(admin, asks="g"))[1]

        assert "gang-extender-held" in await eventually(called)
        member, refusal = await dry_run(admin, asks="g", group="g")
        assert refusal == ""
        assert member["spec"]["schedulingGates"] == [{"name": GATE}]
        held = await admin.get(f"{BINDINGS}/gang-extender-held")
        await admin.delete(f"{BINDINGS}/gang-extender-held")

        async def stored() -> Object:
            return (await dry_run(admin, asks="g"))[0]

        alone = await eventually(stored)
        assert alone["metadata"]["labels"][LABEL] == "g"
        assert "schedulingGates" not in alone["spec"]
        await secured.restore(held)
