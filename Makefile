# Every target makes what it needs: `make demo` and `make test` work in a bare clone.
# Variables: PYTHON makes the environment; ARGS goes to pytest, as in `make test ARGS="-k gibbs"`.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python

# A worker takes what another has left; until then each has a half in order, which shares fixtures.
PYTEST := OMP_NUM_THREADS=1 SCIPY_ARRAY_API=1 $(PY) -m pytest -n 2 --dist worksteal

# pytest keeps tests with rewritten assertions as bytecode: several seconds a worker.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-full test-all mutate soak lint types docs browse doctest clean

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
