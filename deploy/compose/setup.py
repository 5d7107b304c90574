"""Create the shared files of docker-compose.yml: tokens, a key pair, kubeconfig files, certificates of the extender.

    python setup.py /etc/kubernetes

DEMO ONLY. The tokens are fixed words that every user of this machine knows, so the API server must be
reachable on loopback only. Running it again changes nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

SERVER = "https://127.0.0.1:6443"
EXTENDER = "system:serviceaccount:gang-extender:gang-extender"
ACCOUNTS = '"system:serviceaccounts,system:serviceaccounts:gang-extender"'
# file -> (token, user, groups)
USERS = {
    "admin.conf": ("demo-admin", "admin", '"system:masters"'),
    "scheduler.conf": ("demo-scheduler", "system:kube-scheduler", ""),
    # The rights of deploy/kubernetes/rbac.yaml and no others.
    "extender.conf": ("demo-extender", EXTENDER, ACCOUNTS),
}
# kube-apiserver creates its own certificate in pki/ when it starts; clients trust that file.
KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: demo
clusters: [{{name: demo, cluster: {{server: "{server}", certificate-authority: {folder}/pki/apiserver.crt}}}}]
users: [{{name: demo, user: {{token: {token}}}}}]
contexts: [{{name: demo, context: {{cluster: demo, user: demo}}}}]
"""


CERTIFICATES = "gang-extender"  # folder; scheduler-config.yaml looks for client.crt, client.key and ca.crt in it
OF_SCHEDULER = {
    "client-kube-scheduler.crt": "client.crt",
    "client-kube-scheduler.key": "client.key",
}
ACCOUNT = 65532  # of the image of the extender; the other programs run as root


def make_certificates(folder: Path) -> None:
    """Make the certificates of the extender and of kube-scheduler, unless they are there."""
    if (folder / "client.key").exists():  # the last one below
        return
    command = [sys.executable, "-m", "extender", "certs", str(folder), "--force"]
    subprocess.run(command, check=True)
    if os.geteuid() == 0:
        os.chown(folder / "server.key", ACCOUNT, ACCOUNT)
    for made, name in OF_SCHEDULER.items():
        shutil.copy2(folder / made, folder / name)


def main(folder: Path, server: str = SERVER) -> None:
    """Write all files below `folder`."""
    (folder / "pki").mkdir(parents=True, exist_ok=True)
    lines = []
    for file, (token, user, groups) in USERS.items():
        lines.append(f"{token},{user},{user}{',' + groups if groups else ''}\n")
        text = KUBECONFIG.format(server=server, folder=folder, token=token)
        (folder / file).write_text(text, encoding="utf-8")
    make_certificates(folder / CERTIFICATES)
    (folder / "tokens.csv").write_text("".join(lines), encoding="utf-8")
    key, public = folder / "sa.key", folder / "sa.pub"
    if not key.exists():
        for command in (
            ["openssl", "genrsa", "-out", str(key), "2048"],
            ["openssl", "rsa", "-in", str(key), "-pubout", "-out", str(public)],
        ):
            subprocess.run(command, check=True, capture_output=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
