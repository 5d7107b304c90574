"""`make release` without BASE: a release whose image is on the stand-in of its base, for machines that can pull no image.

    python -m tests.compose.release [options of deploy.release]

Everything else is as in a release; the name of the image archive has `on-stand-in`. Runs podman with the
configuration of `make compose`.
"""

from __future__ import annotations

import subprocess
import sys

from deploy.release import image
from tests.compose.engine import CannotRunError, CommandError, Engine
from tests.compose.images import (
    BASE_LINE,
    DOCKERFILE,
    ROOT,
    build,
    ensure_base,
    is_there,
    stand_in,
)
from tests.compose.project import pip_mounts
from tests.controlplane.build import locked

NAME = "localhost/gang-extender-stand-in/python"


def ensure_stand_in(engine: Engine) -> str:
    """Build the stand-in of the base image unless it is there; return its name with its digest."""
    ensure_base(engine)
    (name,) = BASE_LINE.findall(DOCKERFILE.read_text(encoding="utf-8"))
    wanted = stand_in(name)
    if not is_there(engine, wanted):
        build(engine, wanted)
    engine.podman("tag", name, NAME)
    return f"{NAME}@{engine.podman('image', 'inspect', '--format', '{{.Digest}}', name)}"


def main(options: list[str]) -> int:
    """Return the exit code of the release."""
    engine = Engine()
    try:
        engine.prepare()
        with locked(engine.folder / "run.lock"), pip_mounts(engine.folder) as mounts:
            try:
                base = ensure_stand_in(engine)
                words = ["--network=host", *(f"--volume={mount}:ro" for mount in mounts)]
                environment = engine.environment | {image.OPTIONS: " ".join(words)}
                command = [sys.executable, "-m", "deploy.release", "--base", base, *options]
                return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
            finally:
                engine.close()
    except (CannotRunError, CommandError, subprocess.SubprocessError) as why:
        print(
            f"no release: BASE is not set, and the stand-in of the base image cannot be built: {why}\n"
            f"set BASE=NAME@sha256:... with podman, {image.WITHOUT}",
            file=sys.stderr,
        )
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
