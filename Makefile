# Two commands do everything: `make run` and `make test`. Both work from a bare clone.
PYTHON ?= python3
BIN := $(CURDIR)/.venv/bin
export PATH := $(BIN):$(PATH)

# One thread per library: more only wait for one another on small networks.
export OMP_NUM_THREADS ?= 1
export MLFLOW_DISABLE_TELEMETRY = true
export DVC_NO_ANALYTICS = 1
export NO_MKDOCS_2_WARNING = 1

.DEFAULT_GOAL := help
.PHONY: help run test test-all coverage lint style types fast-tests docs plots docs-serve licences dist serve pretrained clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

run: .venv/.installed ## set up, measure this machine, train, promote, serve, ask, compare, simulate a cluster
	dvc repro
	@python examples/first_answers.py
	@echo "a cluster of 16 such devices, simulated with the forecasts of the release:"
	@presage simulate --trace examples/trace.csv --cluster examples/cluster.yaml \
	  --measured data/profiles/cpu-2-zoo --predictor data/release --policy fifo,sjf,srtf

PYTEST := python -m pytest --dist loadfile --maxprocesses 4
# Tests of the fast tier often wait for processes: on two cores, three workers use both. In the order
# of their names, the last files are short ones; by their number of tests, single long tests would be.
WORKERS := $(if $(filter 1 2,$(shell nproc 2>/dev/null)),3,4)

# mypy takes a minute of one core without its cache: it runs beside the tests.
test: style ## set up, lint, types, import rules, and the fast tests
	@$(MAKE) --no-print-directory --jobs 2 types fast-tests
	@echo "slow tests were skipped: make test-all runs them, too"

test-all: lint ## the same with all tests, as in CI: an hour
	PRESAGE_TEST_FAULTS=all $(PYTEST) --numprocesses logical

coverage: .venv/.installed ## the tests, and which lines of the code they ran: slower
	$(PYTEST) --numprocesses logical --cov --cov-report=term:skip-covered

lint: style types ## the checks that run nothing: ruff, import-linter, mypy

style: .venv/.installed
	ruff check .
	ruff format --check .
	lint-imports

types: .venv/.installed
	mypy

fast-tests: .venv/.installed
	$(PYTEST) --numprocesses $(WORKERS) --no-loadscope-reorder

docs: .venv/.docs ## build the documentation site (build/site/index.html), and check spelling
	mkdocs build --quiet
	typos

plots: .venv/.docs ## draw the plots of the last training without a network (build/plots/index.html)
	python -m presage.pipelines.evaluation.plot_template build/plots.html
	dvc plots show --html-template build/plots.html --out build/plots

docs-serve: .venv/.docs ## serve the documentation site on localhost:8000, and rebuild it on changes
	mkdocs serve

licences: .venv/.installed ## an SBOM of what is installed (build/sbom.json), and which licences are allowed
	python .ci/licences.py

dist: .venv/.installed ## build wheel and source distribution of HEAD twice, compare and check them (dist/)
	python .ci/release.py

serve: .venv/.installed ## serve the newest release on localhost:50051
	presage serve

pretrained: .venv/.installed ## make data/pretrained again, from public tables (docs/forecasts/pretrained.md)
	python -m presage.pipelines.pretraining.pretrain

clean: ## remove everything that `make` made, the measurements of this machine too
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage
	rm -rf .dvc/cache .dvc/tmp data/profiles/local data/features data/models data/baselines data/evaluation
	rm -rf data/release data/registry data/decision.json data/verdict.json data/.??* build src/*.egg-info
	rm -f src/presage/native/*.so

.venv/.docs: .venv/.installed requirements-docs.lock
	$(LOCKED) -r requirements-docs.lock
	@touch $@

# Each file of each package is one whose hash is in a lock file (.ci/lock writes them), and what a
# package asks for is there too. torch is its build for CPUs where an index has that, else the one
# of PyPI, which on Linux is for GPUs; `make TORCH=gpu` takes that at once.
LOCKED := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes

.venv/.installed: requirements.lock requirements-torch.lock requirements-torch-cpu.lock pyproject.toml
	@echo "setting up .venv: about 180 packages, a few minutes the first time"
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Presage needs Python 3.11 or newer; try make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(LOCKED) -r requirements.lock
	@test "$(TORCH)" != gpu && $(LOCKED) -r requirements-torch-cpu.lock 2>/dev/null \
	  || $(LOCKED) -r requirements-torch.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@
