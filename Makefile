# All commands for contributors and CI. Needs Python >= 3.10 with pip, and make.
#
#   make demo         tune a neural network on a local Dask cluster (examples/01_digits_asha.py); installs
#                     only what this needs
#   make test         all tests but the slow ones; JOBS=<n> processes; as root it installs Chromium with
#                     apt-get for the browser tests, if it is missing
#   make test-slow    the slow tests: long searches, reproduced papers, random faults, scikit-learn's checks,
#                     SLURM, SSH and Dask Gateway; as root it also installs SLURM and an SSH server;
#                     SLOW='slow and not exhaustive', as in CI, leaves out tests that repeat another one
#   make test-all     both, and those of make test-integrations
#   make test-integrations  trainings with PyTorch, Lightning, Accelerate, Transformers and JAX, also on several ranks;
#                     installs these packages, which take gigabytes; make test and make test-slow skip these tests
#                     without them
#   make coverage     which lines of the pure packages the tests have reached that ran with COVERAGE=1; fails if it
#                     is not all of them
#   make test-oldest  the core of the tests with the oldest supported Dask, on Python 3.10 if it is there
#   make test-matrix  the same with the newest packages on Python 3.10 to 3.13, as far as they are there
#   make chaos        twenty seeds of random faults, on a disk and on S3: nothing may be lost
#   make lint         style, types, layers, docstrings, spelling
#   make format       apply ruff's automatic fixes
#   make docs         the documentation, into docs/_build/html
#   make bench        the benchmarks
#   make screenshots  the screenshots of the dashboard in the documentation; needs Chromium
#   make wheel-test   build the wheel and test it in a fresh environment
#   make install      install the dependencies of all these commands
#   make clean        remove all generated files, virtual environments included
#
# PYTHON=<interpreter>, such as python3.13, sets the Python; VENV=<dir> the directory of its environment; UV=<path of uv>
# installs with uv, which takes a fifth of the time of pip, as CI does.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# Let Python store compiled modules even where the user's settings forbid it. Many tests start processes that
# import dasktune, and compiling it takes each of them as long as importing it.
export PYTHONDONTWRITEBYTECODE :=

# pip would compile every module, which takes longer than the rest of an installation; Python compiles
# and stores the imported ones.
export PIP_COMPILE := 0

# `pip` is the beginning of a command that installs packages into the environment $(1), without the warning of
# setuptools about editable installations; `newest` lets it take the newest versions of all.
pip = PYTHONWARNINGS=ignore $(if $(UV),$(UV) pip install --quiet --python $(1),$(1)/bin/python -m pip install --quiet \
	--disable-pip-version-check)
newest := --upgrade $(if $(UV),,--upgrade-strategy=eager)

# Many tests write small files and sync each of them. In memory that takes no time.
ifneq ($(wildcard /dev/shm/.),)
export PYTEST_DEBUG_TEMPROOT ?= /dev/shm
endif

# Each Python that is asked for has an environment of its own.
ifndef VENV
VENV := $(if $(PYTHON),.venv-$(notdir $(PYTHON)),.venv)
endif
BIN := $(VENV)/bin
override PYTHON := $(shell .ci/find-python $(or $(PYTHON),python3.11 python3))

# The environment with the oldest supported dependencies, on the oldest supported Python if it is here.
OLDEST_VENV := build/oldest-venv
OLDEST_PYTHON = $(shell .ci/find-python python3.10 "$(PYTHON)")

WHEEL_DIR := build/wheel
WHEEL_SOURCE := build/wheel-source
WHEEL_VENV := build/wheel-venv
WHEEL_TESTS := $(addprefix tests/,unit/cli component/cli unit/trainable unit/tuner/test_tuner.py)

# The number of processes that run tests: one more than there are processors, because a test waits for other
# processes and for the network a third of its time.
JOBS ?= $(shell echo $$(( $$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN) + 1 )))

# Make a virtual environment at $(1) with the Python $(2). If it lacks ensurepip, use the system's pip.
define make_venv
	@test -n "$(2)" || { echo "there is no such Python, or it is older than 3.10: make PYTHON=<interpreter>" >&2; exit 1; }
	$(2) -m venv --clear $(1) 2>/dev/null || { \
		$(2) -m venv --clear --without-pip $(1); \
		$(2) -m pip --python $(1)/bin/python install --quiet pip; }
endef

.PHONY: help
help:
	@sed -n '2,/^$$/s/^# \{0,1\}//p' Makefile

# An existing environment is kept; pip updates it.
$(BIN)/python:
	$(call make_venv,$(VENV),$(PYTHON))

$(VENV)/.installed-%: pyproject.toml setup.cfg setup.py dasktune/version.py | $(BIN)/python
	$(call pip,$(VENV)) --editable '.[$(subst -,$(comma),$*)]'
	touch $@

comma := ,
DEV := $(VENV)/.installed-test-lint
DOCS := $(VENV)/.installed-docs
ENGINES := $(VENV)/.installed-engines
INTEGRATIONS := $(VENV)/.installed-integrations

# Two pips must not change an environment at the same time.
$(ENGINES): | $(DEV)
$(INTEGRATIONS): | $(DEV)

build/uv/bin/uv:
	$(call make_venv,build/uv,$(PYTHON))
	build/uv/bin/python -m pip install --quiet --disable-pip-version-check uv

# The demo needs only a part of the packages. Do not install this part if they are installed, or if
# another goal installs them: two pips must not change an environment at the same time.
DEMO := $(if $(wildcard $(DEV))$(filter-out demo,$(MAKECMDGOALS)),$(DEV),$(VENV)/.installed-rich-sklearn)

.PHONY: demo
demo: $(DEMO)
	$(BIN)/python examples/01_digits_asha.py

# Two pips must not change an environment at the same time, so run this before commands with --jobs.
.PHONY: install
install: $(VENV)/.installed-test-lint-docs-engines $(OLDEST_VENV)/.installed
	touch $(DEV) $(DOCS) $(ENGINES)

# The tests of a module run in one process, because they share clusters and other fixtures; the modules
# run in the order of tests/conftest.py. If a process dies, pytest-xdist may wait for ever for the tests
# that it had, so end at once.
XDIST = --numprocesses=$(JOBS) --dist=loadfile --no-loadscope-reorder --max-worker-restart=0
PYTEST = $(BIN)/python -m pytest $(XDIST) $(AGAIN)

# RERUNS=1, as in CI, runs a test that has failed once more, and lists it among the "reruns". Such a test is a
# bug: find out why it failed. Without it a test that fails once fails the run.
AGAIN = $(if $(RERUNS),--reruns=$(RERUNS) -r fER)

# With COVERAGE=1, as in CI, `make test` measures which lines of the pure packages the tests of these packages and of the
# runner reach: all of them, as `make coverage` checks. The other tests run without it, because it takes time.
PURE := experiment forecast placement schedulers search space stopper text trial
PURE_FILES := errors numeric_threads plugins
MEASURED := $(wildcard $(PURE:%=dasktune/%) $(PURE_FILES:%=dasktune/%.py) $(PURE:%=tests/unit/%) \
	$(PURE:%=tests/component/%) $(PURE_FILES:%=tests/unit/test_%.py)) tests/unit/in_process tests/unit/runner \
	tests/unit/testing tests/test_imports.py

.PHONY: test
test: $(DEV)
	@.ci/browser
ifdef COVERAGE
	$(PYTEST) -m 'not slow' $(addprefix --ignore=,$(MEASURED))
	$(PYTEST) -m 'not slow' $(MEASURED) --cov --cov-report= --cov-append
else
	$(PYTEST) -m 'not slow'
endif

# Which of the slow tests `make test-slow` runs.
SLOW ?= slow

.PHONY: test-slow
test-slow: $(DEV) $(ENGINES)
	@.ci/browser
	@.ci/engines
	$(PYTEST) -m '$(SLOW)' tests

.PHONY: coverage
coverage: $(DEV)
	$(BIN)/python -m coverage report --fail-under=100

.PHONY: test-all
test-all: $(DEV) $(ENGINES)
	@.ci/browser
	@.ci/engines
	@$(MAKE) --no-print-directory $(INTEGRATIONS) || \
		echo 'test-all: PyTorch and the other training packages cannot be installed; their tests are skipped' >&2
	$(PYTEST)

.PHONY: test-integrations
test-integrations: $(DEV) $(INTEGRATIONS)
	$(PYTEST) tests/cluster/test_torch_on_ranks.py tests/cluster/test_trainers_on_ranks.py tests/cluster/test_how_to_of_ranks.py \
		tests/cluster/test_training_packages.py tests/unit/integration tests/component/integration

# The tests of what depends on the versions of Python and Dask. Install only the packages that these tests
# need, to be quick. Old versions may warn.
CORE_TESTS = -m pytest -p no:cacheprovider -W default $(XDIST) $(AGAIN)
CORE_PACKAGES := --editable . hypothesis pytest pytest-rerunfailures pytest-timeout pytest-xdist

.PHONY: test-oldest
test-oldest: $(OLDEST_VENV)/.installed
	$(OLDEST_VENV)/bin/python $(CORE_TESTS) -m core tests/cluster tests/unit/cluster tests/component/cluster

$(OLDEST_VENV)/.installed: .ci/oldest.txt pyproject.toml setup.cfg
	$(call make_venv,$(OLDEST_VENV),$(OLDEST_PYTHON))
	$(call pip,$(OLDEST_VENV)) --constraint .ci/oldest.txt $(CORE_PACKAGES)
	touch $@

# The same with the newest packages on each of these Pythons.
PYTHONS ?= python3.10 python3.11 python3.12 python3.13

.PHONY: test-matrix
test-matrix: $(addprefix test-core-,$(PYTHONS))

test-core-%:
	@if python=$$(.ci/find-python $*); then \
		set -x; \
		[[ -x build/$*/bin/pytest ]] || "$$python" -m venv --clear build/$*; \
		$(call pip,build/$*) $(newest) $(CORE_PACKAGES); \
		build/$*/bin/python $(CORE_TESTS) -m core tests/cluster tests/unit/cluster tests/component/cluster; \
	else \
		echo 'test-matrix: skipped $*, which is not on this machine'; \
	fi

# Each seed is a storm and a hundred killed drivers on a disk, the same on S3, and hundreds of power cuts. Signals come
# at a hundred moments. One test of one seed:
# CHAOS_SEEDS=3 .venv/bin/python -m pytest 'tests/chaos/test_chaos.py::test_nothing_is_lost_in_a_storm[2]'
.PHONY: chaos
chaos: $(DEV)
	CHAOS_SEEDS=20 $(BIN)/python -m pytest -m chaos tests/chaos tests/cluster

.PHONY: lint
lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/python docs/check_docstrings.py
	$(BIN)/codespell

.PHONY: format
format: $(DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: docs
docs: $(DOCS)
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --jobs=auto -b html docs docs/_build/html
	$(BIN)/python docs/check_pages.py docs/_build/html

.PHONY: bench
bench: $(DEV)
	$(BIN)/python -m benchmarks

.PHONY: screenshots
screenshots: $(DEV)
	@CI=1 .ci/browser
	$(BIN)/python -m docs.screenshots

# Build a copy, because a build writes into the tree while other tests may read it. First run the
# quickstart of the README with nothing but the wheel, as a new user would. Then run the tests from an
# empty directory, because they would import the checkout otherwise; the packages for tests are those
# of the contributors' environment. A comparison shows that the wheel has every file; the tests only
# show that it works without the checkout, so a part of them is enough: an import of every module, which
# the collection of their examples does, and the main interfaces.
.PHONY: wheel-test
wheel-test: $(DEV)
	rm -rf $(WHEEL_DIR) $(WHEEL_SOURCE)
	mkdir -p $(WHEEL_SOURCE)
	cp -R dasktune pyproject.toml setup.cfg setup.py README.md LICENSE $(WHEEL_SOURCE)
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir $(WHEEL_DIR) ./$(WHEEL_SOURCE)
	$(call make_venv,$(WHEEL_VENV),$(PYTHON))
	wheel=$$(echo $(WHEEL_DIR)/dasktune-*.whl); python='$(CURDIR)/$(WHEEL_VENV)/bin/python'; \
		$(call pip,$(WHEEL_VENV)) "$$wheel"; \
		elsewhere=$$(mktemp -d); trap 'rm -rf "$$elsewhere"' EXIT; \
		"$$python" .ci/quickstart.py README.md > "$$elsewhere/quickstart.py"; \
		(cd "$$elsewhere"; HOME="$$elsewhere" "$$python" quickstart.py | grep "^{'lr': 0" >/dev/null)
	packages=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
		elsewhere=$$(mktemp -d); trap 'rm -rf "$$elsewhere"' EXIT; cd "$$elsewhere"; \
		export PYTHONPATH="$$packages"; python='$(CURDIR)/$(WHEEL_VENV)/bin/python'; \
		there=$$("$$python" -c 'import dasktune; print(*dasktune.__path__)'); \
		[[ "$$there" == */site-packages/dasktune ]]; \
		diff --recursive --exclude=__pycache__ '$(CURDIR)/dasktune' "$$there"; \
		pytest=("$$python" -m pytest -c '$(CURDIR)/pyproject.toml' -p no:cacheprovider); \
		"$${pytest[@]}" --collect-only --quiet --quiet --pyargs dasktune; \
		"$${pytest[@]}" $(XDIST) $(AGAIN) \
			$(patsubst %,'$(CURDIR)/%',$(WHEEL_TESTS))

.PHONY: clean
clean:
	rm -rf $(VENV) build dist docs/_build docs/generated htmlcov *.egg-info .coverage .coverage.*
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
