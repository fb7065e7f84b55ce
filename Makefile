PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check

# One environment for all targets; made anew when the dependencies change.
.venv/ready: pyproject.toml
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'draftbus needs Python 3.11 or newer: make PYTHON=python3.12 ...')"
	$(PYTHON) -m venv .venv
	rm -rf draftbus.egg-info  # an old one would hide strategies that are new
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[dev]"
	touch $@

demo: .venv/ready
	$(BIN)/draftbus-bench demo

# Two workers of one compute thread each: threads that share a core wait for each other.
test: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2 --dist loadfile

check: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(MAKE) test
