# Every target makes what it needs: `make demo` and `make test` work in a bare clone.
# Variables: PYTHON makes the environment; ARGS goes to pytest, as in `make test ARGS="-k gibbs"`.

PYTHON ?= python3
VENV := .venv

# A target runs in an environment that holds its own extra: what that lacks, no other one hides.
IN = $(VENV)/$(1)/bin/python

# A worker takes what another has left; until then each has a half in order, which shares fixtures.
PYTEST = OMP_NUM_THREADS=1 SCIPY_ARRAY_API=1 $(call IN,$(1)) -m pytest -n 2 --dist worksteal

# pytest keeps tests with rewritten assertions as bytecode: several seconds a worker.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-full test-all test-oldest test-newest dist-check mutate soak lint types docs browse doctest clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 18

demo: $(VENV)/plot/installed ## train a restricted Boltzmann machine and plot it
	$(call IN,plot) examples/rbms/demo.py

test: $(VENV)/test/installed ## run the first tier of the tests: every behaviour once
	$(call PYTEST,test) $(ARGS)

test-full: $(VENV)/full/installed ## run the tests that the first tier leaves out
	$(call PYTEST,full) -m full $(ARGS)

test-all: $(VENV)/full/installed ## run all tests
	$(call PYTEST,full) -m "" $(ARGS)

test-oldest: $(VENV)/oldest/installed ## run the first tier with the oldest supported versions
	$(call PYTEST,oldest) $(ARGS)

test-newest: $(VENV)/newest/installed ## run the first tier with the newest versions of everything
	$(call PYTEST,newest) $(ARGS)

dist-check: $(VENV)/dist/installed ## build the distributions, check them, and try the wheel alone
	rm -rf dist
	$(call IN,dist) -m build --outdir dist .
	$(call IN,dist) -m twine check --strict dist/*
	$(call IN,dist) -m check_manifest
	$(PYTHON) -m venv --clear $(VENV)/wheel
	$(call IN,wheel) -m pip install --quiet -c constraints.txt dist/*.whl
	$(call IN,wheel) -I tools/smoke.py

mutate: $(VENV)/mutation/installed ## plant faults in a copy of skebm; which test notices?
	$(call IN,mutation) -m tools.mutate $(ARGS)

soak: $(VENV)/test/installed ## fit every estimator to hostile tables, and list what does not hold
	OMP_NUM_THREADS=1 $(call IN,test) -m tools.soak $(ARGS)

lint: $(VENV)/lint/installed ## check style and formatting
	$(call IN,lint) -m ruff check .
	$(call IN,lint) -m ruff format --check .

types: $(VENV)/types/installed ## check the types
	$(call IN,types) -m mypy

docs: $(VENV)/docs/installed ## build the documentation, running every example
	OMP_NUM_THREADS=1 $(call IN,docs) -m sphinx -W --keep-going -q docs docs/_build/html
	@echo "open docs/_build/html/index.html"

browse: docs $(VENV)/browser/installed ## read the built documentation in headless Chromium
	$(call IN,browser) -m tools.browse_docs docs/_build/html $(ARGS)

doctest: $(VENV)/doctest/installed ## run the examples of the docstrings
	OMP_NUM_THREADS=1 $(call IN,doctest) -m pytest --doctest-modules --ignore=skebm/integrations skebm $(ARGS)

clean: ## remove what was built, but not the environment
	rm -rf dist docs/_build docs/gallery docs/generated
	rm -rf .hypothesis .mutation .mypy_cache .pytest_cache .ruff_cache digits_rbm.png examples/rbms/digits_rbm.png

# skebm and its dependencies, torch among them, are installed once, into core; the environment of an
# extra sees them through a .pth file. Only what is imported is compiled.
PIP := -m pip --disable-pip-version-check
INSTALL := install --quiet --no-compile -c constraints.txt -e
SITE := -c 'import sysconfig; print(sysconfig.get_path("purelib"))'

$(VENV)/core/installed: pyproject.toml constraints.txt
	@echo "--- installing skebm into $(VENV)/core"
	@$(PYTHON) -m venv --clear $(VENV)/core
	@$(call IN,core) $(PIP) $(INSTALL) .
	@touch $@

$(VENV)/%/installed: $(VENV)/core/installed
	@echo "--- installing skebm[$*] into $(VENV)/$*"
	@$(PYTHON) -m venv --clear --without-pip $(VENV)/$*
	@$(call IN,core) $(SITE) > $$($(call IN,$*) $(SITE))/core.pth
	@$(call IN,core) $(PIP) --python $(call IN,$*) $(INSTALL) ".[$*]"
	@touch $@

# Environments without core. On Linux an old or the newest torch is a CUDA build of gigabytes, unless
# pip knows an index of CPU builds: PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu, or
# TORCH=torch==2.13.0 for the newest versions of everything else.
TORCH ?= torch

$(VENV)/oldest/installed: pyproject.toml tools/oldest.py
	@echo "--- installing the oldest supported versions into $(VENV)/oldest"
	$(PYTHON) -m venv --clear $(VENV)/oldest
	$(call IN,oldest) -m tools.oldest > $(VENV)/oldest/requirements.txt
	$(call IN,oldest) -m pip install --quiet -r $(VENV)/oldest/requirements.txt -e .
	@touch $@

$(VENV)/newest/installed: pyproject.toml
	@echo "--- installing the newest versions into $(VENV)/newest"
	$(PYTHON) -m venv --clear $(VENV)/newest
	$(call IN,newest) -m pip install --quiet "$(TORCH)" -e ".[test]"
	@touch $@
