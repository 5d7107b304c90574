#!/bin/sh
# OR-tools 9.15.6755: `import ortools.sat.python.cp_model` loads pandas, which is most of what the import costs.
#
# A model of integers and booleans needs no table, yet the module imports pandas at its top, since a few methods of CpModel take a
# Series or an Index. Variables, expressions, protocol buffers and the solver are in the module below, `cp_model_helper`, which loads
# neither pandas nor NumPy; it has no documentation. So extender/core/planner/solve/integer_program.py builds its models with that
# one, and tests/contract/test_integer_program.py compares each kind of row, and the solutions, with those of `cp_model`.
#
# Installs ortools in a temporary folder, measures three fresh processes of each kind by their own CPU time, and solves a model.
# Exit code 0: pandas is loaded, a small model was solved without it being asked for, and it is more than a third of the CPU.
#
# Output seen on 2026-11-30 with Python 3.11.7 (beside other work; the share is what counts):
#   import of cp_model: 0.87 s of CPU; of cp_model_helper: 0.18 s; of pandas alone: 0.73 s, 83%
#   after a model of one integer: pandas is loaded: True
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q ortools==9.15.6755 pandas==3.1.1 numpy==2.4.6
cat >"$folder/cost.py" <<'PYTHON'
import statistics
import subprocess
import sys

CPU = "import time; begun = time.process_time(); {}; print(time.process_time() - begun)"


def cpu_s(statement: str) -> float:
    """Return the median CPU time of a statement in three fresh processes, in seconds."""
    runs = [subprocess.run([sys.executable, "-c", CPU.format(statement)], capture_output=True, text=True, check=True) for _ in range(3)]
    return statistics.median(float(run.stdout) for run in runs)


subprocess.run([sys.executable, "-c", "import pandas; import ortools.sat.python.cp_model"], check=True)  # compiles both
model, pandas = cpu_s("import ortools.sat.python.cp_model"), cpu_s("import pandas")
helper = cpu_s("import ortools.sat.python.cp_model_helper")
print(f"import of cp_model: {model:.2f} s of CPU; of cp_model_helper: {helper:.2f} s; of pandas alone: {pandas:.2f} s, {pandas / model:.0%}")

from ortools.sat.python import cp_model  # noqa: E402

problem = cp_model.CpModel()
count = problem.new_int_var(0, 9, "count")
problem.add(2 * count <= 9)
problem.maximize(count)
solver = cp_model.CpSolver()
assert solver.solve(problem) == cp_model.OPTIMAL
assert solver.value(count) == 4
print(f"after a model of one integer: pandas is loaded: {'pandas' in sys.modules}")
sys.exit(0 if "pandas" in sys.modules and pandas > model / 3 else 1)
PYTHON
"$folder/venv/bin/python" "$folder/cost.py"
