# `make` lists what there is. Every target makes what it needs; nothing is installed twice.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# One thread per worker: the tests run in parallel, and results depend on the number of threads. What Python compiles is kept,
# whatever the machine's own setting: many tests start processes, and each would compile everything anew.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 MPLBACKEND=Agg PYTHONDONTWRITEBYTECODE=
# One more than there are cores: tests of several processes wait for one another.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) + 1)')
# tests/tiers.py says which tests are of the second tier.
TESTS = $(TEST_ENV) $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 8 --dist worksteal --durations=10
PYTHONS ?= python3.11 python3.12 python3.13

.DEFAULT_GOAL := help
.PHONY: help demo demo-network demo-scale test test-slow test-all coverage mutations test-pythons lint format types docs reproduction wheel-check clean
.DELETE_ON_ERROR:

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.installed ## install, train twenty small models, and show what they leak
	@$(BIN)/splitvfl demo
	@echo "(these commands are in $(BIN); \". $(BIN)/activate\" puts them on your path)"

demo-network: $(VENV)/.installed ## three companies on this machine: align, train, kill one and start it again, predict
	@OMP_NUM_THREADS=1 $(BIN)/splitvfl demo --network
	@echo "(these commands are in $(BIN); \". $(BIN)/activate\" puts them on your path)"

demo-scale: $(VENV)/.installed ## two companies of two workers on this machine: train, kill a worker, start again, compare
	@OMP_NUM_THREADS=1 $(BIN)/python -m scripts.demo_scale

test: $(VENV)/.installed-dev ## run the tests of the first tier: all but the slow ones, in about four minutes
	$(TESTS) -m "not slow"

test-slow: $(VENV)/.installed-dev ## run the tests of the second tier: benchmarks, reproductions, disturbed runs
	$(TESTS) -m slow

test-all: $(VENV)/.installed-dev ## run all tests
	$(TESTS)

coverage: $(VENV)/.installed-dev ## run all tests, and show which lines none of them reaches; it takes twice as long
	$(TESTS) --cov --cov-report=term

mutations: $(VENV)/.installed-dev ## break the package in 80 small ways, and see that the first tier notices each
	$(TEST_ENV) $(BIN)/python -m scripts.mutations

test-pythons: ## run all tests on each Python that splitvfl is for, each in an environment of its own
	for python in $(PYTHONS); do $(MAKE) test-all PYTHON=$$python VENV=.venv-$$python || exit 1; done

lint: $(VENV)/.installed-dev ## check format and style
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: $(VENV)/.installed-dev ## format the code and repair what can be repaired safely
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: $(VENV)/.installed-dev ## check the types
	$(BIN)/mypy

docs: $(VENV)/.installed-dev ## build the documentation in docs/_build; warnings are errors (DOCS="-t sources": with the sources)
	$(BIN)/python -m sphinx $(DOCS) -W --keep-going -q -j auto -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

reproduction: $(VENV)/.installed-dev ## a paper on a little data, in seconds; fails where what is proved does not hold
	rm -rf build/reproduction
	$(TEST_ENV) $(BIN)/python -m scripts.reproduce.prediction_phase --quick --check --out build/reproduction

wheel-check: $(VENV)/.installed-dev ## build the wheel through the sdist, compare it with the tree, and import it
	$(TEST_ENV) $(BIN)/python -m pytest tests/test_packaging.py

clean: ## remove the environment and everything that was built
	rm -rf $(VENV) .venv-* build dist docs/_build .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is newer than what it was installed from, so a second run installs nothing.
$(VENV)/.made:
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit(f"splitvfl needs Python 3.11 or later; $(PYTHON) is {v[0]}.{v[1]}. Name another: make PYTHON=python3.12")'
	@echo "Making a virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# The hashes of the lock files are checked, also those of the build backend, and nothing is resolved: they hold everything.
# First PyTorch from where pip was told to look beside the index (find-links), if there is a build whose hash is known: links
# to files carry no hash, and pip would prefer the index's, which do. PyTorch as the package index has it for Linux is built
# for CUDA, and needs the libraries of the third file.
locked := $(PIP) install --quiet --require-hashes --no-deps
define install
@echo "Installing splitvfl and what it needs into $(VENV) (PyTorch is large: minutes on the first run)"
@sed -n '/^torch==/,/[^\\]$$/p' $< | $(locked) --no-index -r /dev/stdin >/dev/null 2>&1 || true
@$(locked) -r $<
@if $(PIP) check | grep '^torch ' >/dev/null; then $(locked) -r requirements-cuda.lock; fi
@$(PIP) install --quiet --no-deps --no-build-isolation -e .
@$(PIP) check >/dev/null || { $(PIP) check; exit 1; }
@touch $@
endef

$(VENV)/.installed: requirements.lock requirements-cuda.lock pyproject.toml $(VENV)/.made
	$(install)

$(VENV)/.installed-dev: requirements-dev.lock requirements-cuda.lock pyproject.toml $(VENV)/.made
	$(install)
