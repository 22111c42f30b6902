# `make run` and `make test` do all set-up themselves, in a virtual environment of their own.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: run test test-quick test-gpu check format catalogue docs clean demo-network

run: .venv/installed
	$(BIN)/adaptcl run --strategy fedavg,fedavg-s,adaptcl --rounds 24 --until 30min

# One thread a process: several would only be in each other's way. Work is stolen in whole stretches,
# so that tests which share a fixture mostly run where it was made.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal

test: .venv/installed-dev
	$(PYTEST)

# For everyday work: all but what is marked slow, the network and what lies beside the package.
test-quick: .venv/installed-dev
	$(PYTEST) -m "not slow" --ignore=tests/engines/network \
		--ignore=tests/paper --ignore=tests/benchmarks

# Captured steps and their kernels against the plain loop; needs a CUDA GPU. PYTHONPATH lets it run
# in an environment that has a CUDA build of PyTorch: make test-gpu GPU_PYTHON=python3
GPU_PYTHON ?= $(BIN)/python
test-gpu:
	PYTHONPATH=src $(GPU_PYTHON) -m pytest tests/gpu

# Four workers behind links of unequal speed, in network namespaces of their own; needs root.
demo-network: .venv/installed-dev
	$(BIN)/python tools/demo_network.py

check: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# What `adaptcl --help` and the lists know; to be made again after a change to any declaration.
catalogue: .venv/installed
	$(BIN)/python tools/make_catalogue.py

# The documentation site, in site/; links are checked.
docs: .venv/installed-dev
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs site

clean:
	rm -rf .venv build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "AdaptCL needs Python 3.11 or newer; say which with: make PYTHON=python3.11 …"; exit 1; }
	$(PYTHON) -m venv .venv

.venv/installed: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

.venv/installed-dev: .venv/installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
