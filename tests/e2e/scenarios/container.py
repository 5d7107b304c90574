"""Play the kubelet for one pod of ours: its containers run as processes, with what the pod gives them and nothing else.

Each has a mount namespace of its own, in which the volumes of the pod stand where its containers mount them, and
everything else can only be read; its user, group and lack of capabilities are those of the pod. Values of Secrets,
ConfigMaps and fields are read from kube-apiserver, and its token is asked for there. The checkout takes the place of the image.
"""

from __future__ import annotations

import base64
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.controlplane.api import Api
from tests.controlplane.build import cache_folder, locked
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import Process

ROOT = Path(__file__).resolve().parents[3]
# Empty folders of every Debian. The user of a container reaches neither a checkout nor a Python below /root, and a volume covers /tmp.
IMAGE, PYTHON, VOLUMES, PROGRAMS = "/mnt", "/srv", "/media", "/opt"
SERVICE = "gang-extender.gang-extender.svc"
SERVICE_PORT = 8888
HOSTS = f"127.0.0.1 localhost {SERVICE}\n"  # in place of DNS and of the address of the Service
VARIABLE = re.compile(r"\$\((\w+)\)")
Object = dict[str, Any]


@contextmanager
def places_to_mount() -> Iterator[None]:
    """Let no other worker use the folders on which volumes are mounted: it would remove them."""
    with locked(cache_folder() / "places.lock"):
        yield


class PodProcess:
    """The containers of one pod on this machine; its address is that of loopback."""

    def __init__(
        self,
        plane: ControlPlane,
        api: Api,
        pod: Object,
        folder: Path,
        target_port: int = SERVICE_PORT,
    ) -> None:
        """Prepare it; nothing is mounted or started.

        Args:
            plane: Its control plane, which containers find as in a pod.
            api: With the rights of a kubelet.
            pod: As kube-apiserver has it.
            folder: For its volumes and logs.
            target_port: Where the port of the Service leads; files of ConfigMaps are given it in its place.
        """
        self._target_port = target_port
        self._plane, self._api, self._pod, self._folder = plane, api, pod, folder
        self._namespace: str = pod["metadata"]["namespace"]
        self._made: list[Path] = []

    async def mount(self) -> None:
        """Fill the volumes, and make the folders on which they are mounted, as far as this machine does not have them."""
        security = self._pod["spec"]["securityContext"]
        for volume in self._pod["spec"]["volumes"]:
            folder = self._folder / "volumes" / volume["name"]
            folder.mkdir(parents=True)
            for name, (content, mode) in (await self._files(volume)).items():
                file = folder / name
                file.write_bytes(content)
                file.chmod(mode)
                os.chown(file, 0, security["fsGroup"])
            if "emptyDir" in volume:
                os.chown(folder, security["runAsUser"], security["fsGroup"])
        (self._folder / "volumes" / "hosts").write_text(HOSTS)
        for container in [*self._init_containers(), *self._pod["spec"]["containers"]]:
            for one in container["volumeMounts"]:
                place = Path(one["mountPath"])
                missing = [path for path in (place, *place.parents) if not path.exists()]
                place.mkdir(parents=True, exist_ok=True)
                self._made += missing

    def unmount(self) -> None:
        """Remove the folders that were made; the mounts are gone with the processes."""
        for place in sorted(set(self._made), key=lambda path: -len(path.parts)):
            place.rmdir()
        shutil.rmtree(self._folder / "volumes", ignore_errors=True)

    async def _files(self, volume: Object) -> dict[str, tuple[bytes, int]]:
        """Return the files of a volume with their modes."""
        if "secret" in volume:
            source = volume["secret"]
            found = await self._api.get(self._path("secrets", source["secretName"]))
            data = {name: base64.b64decode(text) for name, text in found["data"].items()}
            return {
                name: (content, source["defaultMode"])
                for name, content in chosen(data, source).items()
            }
        if "configMap" in volume:
            found = await self._api.get(self._path("configmaps", volume["configMap"]["name"]))
            port, target = f"{SERVICE}:{SERVICE_PORT}/", f"{SERVICE}:{self._target_port}/"
            return {
                name: (text.replace(port, target).encode(), 0o644)
                for name, text in found["data"].items()
            }
        made: dict[str, tuple[bytes, int]] = {}
        if "projected" in volume:
            mode = volume["projected"]["defaultMode"]
            for source in volume["projected"]["sources"]:
                made |= {
                    name: (content, mode)
                    for name, content in (await self._projected(source)).items()
                }
            return made
        assert "emptyDir" in volume, volume
        return made

    async def _projected(self, source: Object) -> dict[str, bytes]:
        if "serviceAccountToken" in source:
            asked = source["serviceAccountToken"]
            wanted = {"expirationSeconds": asked["expirationSeconds"]}
            if "audience" in asked:
                wanted["audiences"] = [asked["audience"]]
            body = {
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenRequest",
                "spec": wanted,
            }
            path = f"{self._path('serviceaccounts', self._pod['spec']['serviceAccountName'])}/token"
            made = await self._api.post(path, body)
            return {asked["path"]: made["status"]["token"].encode()}
        if "configMap" in source:
            found = await self._api.get(self._path("configmaps", source["configMap"]["name"]))
            return chosen(
                {name: text.encode() for name, text in found["data"].items()}, source["configMap"]
            )
        return {
            one["path"]: self._field(one["fieldRef"]["fieldPath"]).encode()
            for one in source["downwardAPI"]["items"]
        }

    def _field(self, path: str) -> str:
        return {"metadata.namespace": self._namespace, "status.podIP": "127.0.0.1"}[path]

    def _path(self, kind: str, name: str) -> str:
        return f"/api/v1/namespaces/{self._namespace}/{kind}/{name}"

    async def _environment(self, container: Object) -> dict[str, str]:
        """Return the variables of a container; references to earlier ones are replaced, as the kubelet does."""
        made: dict[str, str] = {}
        for one in container.get("env", []):
            source = one.get("valueFrom", {})
            if "secretKeyRef" in source:
                found = await self._api.get(self._path("secrets", source["secretKeyRef"]["name"]))
                made[one["name"]] = base64.b64decode(
                    found["data"][source["secretKeyRef"]["key"]]
                ).decode()
            elif "fieldRef" in source:
                made[one["name"]] = self._field(source["fieldRef"]["fieldPath"])
            else:
                made[one["name"]] = VARIABLE.sub(
                    lambda match: made.get(match[1], match[0]), one.get("value", "")
                )
        return made | {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self._plane.port),
            "PATH": os.environ["PATH"],
            "HOME": "/",  # what runc sets for a user that /etc/passwd does not have
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": f"{IMAGE}:{Path(IMAGE, Path(sysconfig.get_path('purelib')).relative_to(ROOT))}",
            "LD_LIBRARY_PATH": f"{PYTHON}/lib",
        }

    async def command(self, container: Object) -> list[str]:
        """Return the command that runs a container in namespaces of its own."""
        security, own = self._pod["spec"]["securityContext"], container["securityContext"]
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert own["allowPrivilegeEscalation"] is False
        assert own["readOnlyRootFilesystem"] is True
        if "command" in container:  # a program of Kubernetes
            name, *words = container["command"]
            program = [f"{PROGRAMS}/{name}", *words]
        else:  # ENTRYPOINT of deploy/Dockerfile
            python = f"{PYTHON}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
            program = [python, "-m", "extender", *container["args"]]
        drop = (
            *("setpriv", f"--reuid={security['runAsUser']}", f"--regid={security['runAsGroup']}"),
            *(
                f"--groups={security['fsGroup']}",
                "--no-new-privs",
                "--bounding-set=-all",
                "--inh-caps=-all",
            ),
        )
        variables = [
            f"{name}={value}" for name, value in (await self._environment(container)).items()
        ]
        steps = [
            f"mount --bind {shlex.quote(str(ROOT))} {IMAGE}",
            f"mount -o remount,bind,ro {IMAGE}",
            f"mount --bind {shlex.quote(sys.base_prefix)} {PYTHON}",
            f"mount -o remount,bind,ro {PYTHON}",
            f"mount --bind {shlex.quote(str(self._plane.binaries))} {PROGRAMS}",
            f"mount --bind {shlex.quote(str(self._folder / 'volumes'))} {VOLUMES}",
            f"mount --bind {VOLUMES}/hosts /etc/hosts",
        ]
        steps += [line for one in container["volumeMounts"] for line in self._mounted(one)]
        steps += [
            f"cd {IMAGE}",
            f"exec env -i {shlex.join(variables)} {shlex.join([*drop, *program])}",
        ]
        script = " && ".join(["mount -o remount,bind,ro /", *steps])
        return ["unshare", "--mount", "--propagation=private", "--", "bash", "-c", script]

    def _mounted(self, one: Object) -> Iterator[str]:
        place = shlex.quote(one["mountPath"])
        yield f"mount --bind {VOLUMES}/{one['name']} {place}"
        if one.get("readOnly"):
            yield f"mount -o remount,bind,ro {place}"

    def _init_containers(self) -> list[Object]:
        return list(self._pod["spec"].get("initContainers", []))

    async def run_init_containers(self) -> str:
        """Run one after the other; return what they print.

        Raises:
            AssertionError: One of them failed.
        """
        printed = ""
        for container in self._init_containers():
            done = subprocess.run(
                await self.command(container),
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            printed += done.stdout
        return printed

    async def start(self) -> Process:
        """Start the one container of the pod."""
        (container,) = self._pod["spec"]["containers"]
        process = Process(
            container["name"],
            await self.command(container),
            self._folder / f"{container['name']}.log",
        )
        process.start()
        return process


def chosen(data: dict[str, bytes], source: Object) -> dict[str, bytes]:
    """Return the items of a Secret or a ConfigMap that a volume names, by their paths; all without such a list."""
    if "items" not in source:
        return data
    return {one["path"]: data[one["key"]] for one in source["items"]}
