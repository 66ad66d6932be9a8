PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Set-up is repeated only when something it depends on has changed.
STAMP := $(VENV)/.installed
NATIVE := $(wildcard native/*.c native/*.h native/*.py)

.PHONY: run test test-all soak check screenshots docs wheels image setup clean

run: setup
	$(BIN)/workbench run presets/quickstart.toml

# `test` is what a change must pass; `test-all` adds the slow suite. What `check` has run is left out. Each file of tests stays
# in one process; there are more of these than two cores, as many tests wait for a process or a screen. Threads that wait
# sleep: spinning, they would hold up the other processes.
PYTEST := OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest --ignore tests/test_imports.py --numprocesses 3 --dist loadfile

test: setup check
	$(PYTEST) -m "not slow and not gpu"

test-all: setup check
	$(PYTEST) -m "not gpu"

# Faults by the thousand: `make soak SOAK="files --minutes 2 --seed 7"`; an hour of every part without words.
soak: setup
	$(BIN)/python -m tests.soak $(SOAK)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest tests/test_imports.py

# The pictures in docs/screens: the scenes of the tests in a terminal; PNGs where rsvg-convert is installed.
screenshots: setup
	$(BIN)/python docs/screens/make.py

# The docs as static pages in build/site; a link that leads nowhere is an error, unless `--quiet` hides it from `--strict`.
docs: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# What is released, in dist/: an sdist and wheels for x86-64 and aarch64, checked and tried. See CONTRIBUTING.md.
# `make wheels WHEELS=--no-trial` installs nothing.
wheels:
	$(PYTHON) release/wheels.py $(WHEELS)

# dist/Containerfile, an image with a wheel of dist/.
image:
	$(PYTHON) release/containerfile.py

setup: $(STAMP)

$(STAMP): pyproject.toml setup.py constraints.txt $(NATIVE)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt "torch==2.13.0"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	@touch $(STAMP)

clean:
	rm -rf $(VENV) build dist *.egg-info workbench/*.so .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
