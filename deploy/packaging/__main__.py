"""Write the chart and the copies of deploy/kustomize: `python -m deploy.packaging`; with a folder, the archive of the chart as well."""

from __future__ import annotations

import sys
from pathlib import Path

from deploy.packaging import archive, manifests, written

for path in written.write():
    print(f"written: {path.relative_to(manifests.ROOT)}")
for folder in sys.argv[1:]:
    print(archive.write(Path(folder)))
