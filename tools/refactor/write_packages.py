"""Write the one-sentence `__init__.py` of every folder of `packages.txt` (existing docstrings are replaced)."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
for line in (Path(__file__).parent / "packages.txt").read_text().splitlines():
    module, _, sentence = (part.strip() for part in line.partition("|"))
    path = ROOT.joinpath(*module.split(".")) / "__init__.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    rest = re.sub(r'\A""".*?"""\n?', "", path.read_text(), flags=re.S) if path.exists() else ""
    path.write_text(f'"""{sentence}"""\n{rest}')
