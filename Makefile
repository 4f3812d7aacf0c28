# Sexton. `make help` lists the targets.
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
JOBS ?= 3
PARTS ?= 24
SECONDS ?= 600
export PIP_DISABLE_PIP_VERSION_CHECK = 1
unexport PYTHONDONTWRITEBYTECODE # each of the processes that tests start would compile the whole project anew
PULSAR_CLIENT := .pulsar-client
WITH_PULSAR_CLIENT := PYTHONPATH=$(PULSAR_CLIENT)
CODE := logstore activities workflows infra spark workers tests

.PHONY: help setup lock protos tables reference fmt lint types imports check test test-replay test-external faults faults-in-parts soak wheel wheel-demo bench screenshots demo up down pulsar-up pulsar-down pulsar-demo test-pulsar clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-16s %s\n", $$1, $$2}'

setup: $(STAMP) ## Make .venv with pinned and hashed dependencies; the command is then .venv/bin/sexton

$(STAMP): pyproject.toml requirements.lock requirements-build.lock
	@command -v $(PYTHON) >/dev/null || { echo "setup: $(PYTHON) is needed, 3.11 to 3.13"; exit 4; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
		|| { echo "setup: Python 3.11 to 3.13 is needed, found $$($(PYTHON) --version); set PYTHON=…"; exit 4; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "setup: installing $$(grep -c '^[a-z].*==' requirements.lock) packages into .venv; this takes some minutes"
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements-build.lock
	$(BIN)/python -m pip install --quiet --require-hashes --no-build-isolation -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

lock: ## Resolve dependencies again (needs uv)
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
		requirements-build.in -o requirements-build.lock
	uv pip compile -q --universal --python-version 3.11 --all-extras --generate-hashes --no-header --no-annotate \
		pyproject.toml -o requirements.lock
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
		tests/pulsar_cluster/requirements.in -o tests/pulsar_cluster/requirements.lock

protos: setup ## Generate the messages of Pulsar and BookKeeper from their .proto files
	$(BIN)/python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. logstore/pulsar/protos/*.proto

tables: setup ## Write the tables that queries import from their declared classes
	$(BIN)/python -m logstore.catalog.declared > .tables.py
	mv .tables.py logstore/catalog/tables.py

reference: setup ## Write docs/reference/workflows.md and docs/reference/settings.md from the code
	$(BIN)/python -m workers.reference workflows > .reference.md
	mv .reference.md docs/reference/workflows.md
	$(BIN)/python -m workers.reference settings > .reference.md
	mv .reference.md docs/reference/settings.md

fmt: setup ## Format and mend what can be mended
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

lint: setup ## Check format and lint
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)

types: setup ## Check types, strictly
	$(BIN)/mypy

imports: setup ## Check who imports whom
	$(BIN)/lint-imports

check: lint types imports test ## Exactly what CI runs

test: setup ## Run the whole suite, real servers and all, in JOBS processes (about 45 minutes on two cores)
	$(BIN)/pytest -n $(JOBS) --dist worksteal

test-replay: setup ## Replay stored histories against today's workflows
	$(BIN)/pytest tests/replay

test-external: setup ## Only the tests that start real servers
	$(BIN)/pytest -m external_service

faults: setup ## What `make test` only samples, in full: failpoints, SIGKILL, machines, contracts on PostgreSQL (long)
	$(BIN)/pytest tests/faults tests/ownership tests/contracts tests/logstore tests/workers/hosting tests/spark/records/test_cluster.py tests/workers/operations/test_sizing.py tests/workers/operations/test_cluster_sizing.py tests/deploy/test_wheel.py tests/soak tests/e2e/test_demo.py tests/e2e/test_secrets.py tests/e2e/test_beyond_one_machine.py --all-faults -n $(JOBS) --dist worksteal $(if $(PART),--part $(PART))

faults-in-parts: setup ## Run `make faults` in PARTS pieces; skip those that passed at this commit
	@mkdir -p .faults; commit=$$(git rev-parse HEAD); for number in $$(seq $(PARTS)); do \
		done=.faults/$$number-of-$(PARTS); \
		if [ "$$(cat $$done 2>/dev/null)" = "$$commit" ]; then echo "part $$number/$(PARTS): passed before"; continue; fi; \
		$(MAKE) --no-print-directory faults PART=$$number/$(PARTS) && echo "$$commit" > $$done || exit 1; \
	done

soak: setup ## All jobs at once on real servers under seeded faults; SECONDS=600 SEED=n DATABASE=postgresql REPORT=file
	$(BIN)/python -m tests.soak --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(if $(DATABASE),--database $(DATABASE)) \
		$(if $(REPORT),--json $(REPORT))

wheel: setup ## Build the wheel into dist
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

wheel-demo: setup ## Install the wheel alone, outside of the clone, and run the demo there (long)
	$(BIN)/pytest tests/deploy/test_wheel.py --all-faults

bench: setup ## Measure ours beside the bare thing on real servers; prints ratios as JSON
	$(BIN)/python -m tests.benchmarks.deletion_speed
	$(BIN)/python -m tests.benchmarks.ownership_speed
	$(BIN)/python -m tests.benchmarks.start_up
	$(BIN)/python -m tests.benchmarks.reconciliation_speed
	$(BIN)/python -m tests.benchmarks.pulsar_speed
	$(BIN)/python -m tests.benchmarks.pulsar_apply_speed
	$(BIN)/python -m tests.benchmarks.transaction_speed
	$(BIN)/python -m tests.benchmarks.delayed_speed
	$(BIN)/python -m tests.benchmarks.cold_start_speed
	$(BIN)/python -m tests.benchmarks.records_speed

screenshots: setup ## Take the pictures in docs/images from a real run (needs chromium)
	$(BIN)/python -m tests.screenshots

demo: setup ## Run the main job on a throw-away stack, kill a worker, check every promise
	$(BIN)/sexton demo

up: setup ## Start the embedded stack and a worker
	$(BIN)/sexton up

down: ## Stop what `make up` started
	$(BIN)/sexton down

pulsar-up: setup ## Start a real Pulsar cluster: ZooKeeper, bookie, broker, S3 (needs Java 17; Maven once, 260 MB)
	$(BIN)/python -m tests.pulsar_cluster up

pulsar-down: setup ## Stop what `make pulsar-up` started; the data stay in .pulsar
	$(BIN)/python -m tests.pulsar_cluster down

pulsar-demo: $(PULSAR_CLIENT)/.installed ## Fill and damage a throw-away Pulsar cluster, plan and apply beside traffic, compare with the truth; KEEP=1 leaves it up
	$(WITH_PULSAR_CLIENT) $(BIN)/python -m tests.pulsar_cluster demo $(if $(KEEP),--keep)

test-pulsar: $(PULSAR_CLIENT)/.installed ## Test plans and applies on a real Pulsar cluster (needs Java 17; not part of CI)
	$(WITH_PULSAR_CLIENT) $(if $(SEXTON_TEST_PULSAR_HOME),SEXTON_TEST_PULSAR_HOME=$(SEXTON_TEST_PULSAR_HOME)) \
		$(BIN)/pytest tests/pulsar_cluster

$(PULSAR_CLIENT)/.installed: $(STAMP) tests/pulsar_cluster/requirements.lock
	rm -rf $(PULSAR_CLIENT)
	$(BIN)/python -m pip install --quiet --require-hashes --target $(PULSAR_CLIENT) -r tests/pulsar_cluster/requirements.lock
	@touch $@

clean: ## Remove caches and the virtual environment
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .pulsar-client
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
