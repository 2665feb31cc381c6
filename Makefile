# Every target makes what it needs: `make demo` and `make test` work in a bare clone.
# Variables: PYTHON makes the environment; ARGS goes to pytest, as in `make test ARGS="-k gibbs"`.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python

# A worker takes what another has left; until then each has a half in order, which shares fixtures.
PYTEST := OMP_NUM_THREADS=1 SCIPY_ARRAY_API=1 $(PY) -m pytest -n 2 --dist worksteal

# pytest keeps tests with rewritten assertions as bytecode: several seconds a worker.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-full test-all test-oldest test-newest dist-check mutate soak lint types docs browse doctest clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 18

demo: $(VENV)/plot.installed ## train a restricted Boltzmann machine and plot it
	$(PY) examples/rbms/demo.py

test: $(VENV)/test.installed ## run the first tier of the tests: every behaviour once
	$(PYTEST) $(ARGS)

test-full: $(VENV)/test.installed $(VENV)/docs.installed $(VENV)/browser.installed ## run the tests that the first tier leaves out
	$(PYTEST) -m full $(ARGS)

test-all: $(VENV)/test.installed $(VENV)/docs.installed $(VENV)/browser.installed ## run all tests
	$(PYTEST) -m "" $(ARGS)

test-oldest: $(VENV)/oldest/installed ## run the first tier with the oldest supported versions
	$(PYTEST:$(PY)=$(VENV)/oldest/bin/python) $(ARGS)

test-newest: $(VENV)/newest/installed ## run the first tier with the newest versions of everything
	$(PYTEST:$(PY)=$(VENV)/newest/bin/python) $(ARGS)

dist-check: $(VENV)/dist.installed ## build the distributions, check them, and try the wheel alone
	rm -rf dist
	$(PY) -m build --outdir dist .
	$(PY) -m twine check --strict dist/*
	$(PY) -m check_manifest
	$(PYTHON) -m venv --clear $(VENV)/wheel
	$(VENV)/wheel/bin/python -m pip install --quiet -c constraints.txt dist/*.whl
	$(VENV)/wheel/bin/python -I tools/smoke.py

mutate: $(VENV)/mutation.installed ## plant faults in a copy of skebm; which test notices?
	$(PY) -m tools.mutate $(ARGS)

soak: $(VENV)/test.installed ## fit every estimator to hostile tables, and list what does not hold
	OMP_NUM_THREADS=1 $(PY) -m tools.soak $(ARGS)

lint: $(VENV)/test.installed ## check style and formatting
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: $(VENV)/test.installed ## check the types
	$(PY) -m mypy

docs: $(VENV)/docs.installed ## build the documentation, running every example
	OMP_NUM_THREADS=1 $(PY) -m sphinx -W --keep-going -q docs docs/_build/html
	@echo "open docs/_build/html/index.html"

browse: docs $(VENV)/browser.installed ## read the built documentation in headless Chromium
	$(PY) -m tools.browse_docs docs/_build/html $(ARGS)

doctest: $(VENV)/test.installed ## run the examples of the docstrings
	OMP_NUM_THREADS=1 $(PY) -m pytest --doctest-modules skebm $(ARGS)

clean: ## remove what was built, but not the environment
	rm -rf dist docs/_build docs/gallery docs/generated
	rm -rf .hypothesis .mutation .mypy_cache .pytest_cache .ruff_cache digits_rbm.png examples/rbms/digits_rbm.png

$(PY):
	@echo "--- creating $(VENV)"
	$(PYTHON) -m venv $(VENV)

# One stamp per extra: installs again only when the requirements have changed.
$(VENV)/%.installed: pyproject.toml constraints.txt | $(PY)
	@echo "--- installing skebm[$*] into $(VENV)"
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$*]"
	@touch $@

# Environments of their own. On Linux an old or the newest torch is a CUDA build of gigabytes, unless
# pip knows an index of CPU builds: PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu, or
# TORCH=torch==2.13.0 for the newest versions of everything else.
TORCH ?= torch

$(VENV)/oldest/installed: pyproject.toml tools/oldest.py | $(PY)
	@echo "--- installing the oldest supported versions into $(VENV)/oldest"
	$(PYTHON) -m venv --clear $(VENV)/oldest
	$(PY) -m tools.oldest > $(VENV)/oldest/requirements.txt
	$(VENV)/oldest/bin/python -m pip install --quiet -r $(VENV)/oldest/requirements.txt -e .
	@touch $@

$(VENV)/newest/installed: pyproject.toml | $(PY)
	@echo "--- installing the newest versions into $(VENV)/newest"
	$(PYTHON) -m venv --clear $(VENV)/newest
	$(VENV)/newest/bin/python -m pip install --quiet "$(TORCH)" -e ".[test]"
	@touch $@
