# Needs only Python 3.11+ (with venv) and make; everything else is installed into .venv.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RUN := $(BIN)/python
# Tests start many processes; without bytecode files each of them would compile all of extender anew (0.5 s of CPU).
unexport PYTHONDONTWRITEBYTECODE
# Stories wait more than they compute. Each worker has a PostgreSQL, and for e2e a control plane, of its own.
WORKERS ?= 2
# More for pytest: make test PYTEST_ARGS="-p randomly" shuffles the tests, PYTEST_ARGS="-k pruning" chooses some.
PYTEST_ARGS ?=
PYTEST := $(RUN) -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-full approve e2e compose check fmt lint types arch house bench bench-check long lock revision clean

help: ## Show what there is
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(VENV)/.installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "gang-extender needs Python 3.11 or newer; set PYTHON=python3.x" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "Python has no venv here; install it (Debian: apt-get install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

setup: $(VENV)/.installed ## Make the virtual environment with the pinned dependencies

demo: setup ## Show it: a tree placed, the service killed and restarted, the history read from the log
	@$(RUN) deploy/demo/play.py

test: setup ## What needs only Python, but for the longest stories: in minutes (see test-full)
	$(PYTEST) -m 'not e2e and not bench and not long and not full' --durations=15

test-full: setup ## All of make test with the tests marked full and all hypothesis examples; ONLY_FULL=1: without what make test ran the same way
	HYPOTHESIS_PROFILE=full $(PYTEST) -m 'not e2e and not bench and not long$(if $(ONLY_FULL), and (full or hypothesis))' --durations=15

approve: setup ## Approve the public surface as it is now: writes tests/golden/public_surface, whose diff is reviewed
	$(RUN) -m tests.public_surface

e2e: setup ## The same product against a real kube-apiserver and kube-scheduler
	$(RUN) -m tests.controlplane.build 1.37 1.36 controllers
	GANG_EXTENDER_E2E=required $(PYTEST) tests/e2e -m 'e2e and not long' --durations=30

compose: setup ## docker-compose.yml as it is shipped, in containers (podman, root) on stand-ins of its images
	$(RUN) -m tests.compose

check: setup lint types arch house ## Style, types, layers of imports, names, words, folder sizes, the public surface

fmt: setup ## Format the code
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

lint: setup
	$(BIN)/ruff format --check . && $(BIN)/ruff check .

types: setup
	$(BIN)/mypy

arch: setup
	$(BIN)/lint-imports

house: setup
	$(RUN) -m pytest -q -n $(WORKERS) tests/test_house.py tests/integration/test_public_surface.py

bench: setup ## Every number beside its baseline: make bench [NAMES="gang verbs"] [ROUNDS=5] [ONLY=pattern] [RESUME=1] [QUICK=1] [RECORD=1] [KUBERNETES=1.36]
	$(RUN) -m tests.bench $(NAMES) --rounds $(or $(ROUNDS),5) $(if $(ONLY),--only '$(ONLY)') $(if $(RESUME),--resume) $(if $(QUICK),--quick) $(if $(RECORD),--record) $(if $(KUBERNETES),--kubernetes $(KUBERNETES))

bench-check: setup ## What of the last run got worse than recorded by more than the spread
	$(RUN) -m tests.bench $(NAMES) --check

long: setup ## Soaks and large sizes, by hand
	$(RUN) -m pytest -m long --timeout 3600 $(PYTEST_ARGS)

revision: setup ## New migration: make revision m="add something"
	$(BIN)/alembic revision -m "$(m)"

lock: ## Renew requirements.lock from pyproject.toml
	$(BIN)/pip-compile --quiet --generate-hashes --strip-extras --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --allow-unsafe --extra embedded --extra dev --output-file requirements.lock pyproject.toml

clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .demo
