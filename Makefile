# Two commands do everything on a machine with Python 3.11+ and make: `make run` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
INTEGRATIONS := tests/fedsim/integrations tests/analysis/export tests/fedsim/data/test_federated_data.py tests/fedsim/data/tasks/test_hugging_face.py \
  tests/docs/test_integrations_page.py tests/docs/test_flower_page.py tests/docs/test_dataframes.py

export RAY_ENABLE_UV_RUN_RUNTIME_ENV = 0

.PHONY: help install run test tables integrations check audit format docs mutants bench clean

help:  ## Show these lines
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(STAMP)  ## Create .venv and install fedsim with everything it needs

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "fedsim needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) --version 2>&1); try: make PYTHON=python3.12"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python -e '.[dev]'
	@# Bytecode of what runs import, even where the environment forbids to write it later: it halves the start.
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m compileall -q fedsim scenarios algorithms analysis
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -c 'import ray, cvxpy, torchvision, pandas, sklearn.datasets, scipy.stats, matplotlib.pyplot, fedsim.execution.ray_trainer, fedsim.runs.simulate, fedsim.analysis.report.report'
	touch $(STAMP)

run: $(STAMP)  ## Compare FedAvg, FedFV and FedLF over a simulated day, and write the report
	$(BIN)/fedsim run examples/quickstart.toml --workers 2 --report --force

test: $(STAMP)  ## Run the whole test suite
	$(BIN)/pytest -n auto --maxprocesses 4 --dist loadgroup

TABLE ?= fedfv_table4
tables: $(STAMP)  ## Run a table of a paper whole and compare it with the page that prints it, or TABLE=qffl_table1
	$(BIN)/pytest -n 0 -m tables -k "[$(TABLE)]" tests/docs/test_papers.py

integrations: .venv-integrations/.installed  ## Test Flower, trackers, Hugging Face datasets, Polars and DuckDB, in an environment of their own
	.venv-integrations/bin/pytest -W default -n 0 $(INTEGRATIONS)

.venv-integrations/.installed: $(STAMP)
	test -x .venv-integrations/bin/python || $(PYTHON) -m venv .venv-integrations
	$(BIN)/uv pip install --quiet --python .venv-integrations/bin/python -e '.[flower,hf,mlflow,tensorboard,wandb]' \
	  duckdb polars 'pytest<9.2' pytest-timeout pytest-xdist
	touch $@

check: $(STAMP)  ## Lint, type-check and audit
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python .ci/audit.py

audit: $(STAMP)  ## Look for published weaknesses of the installed packages, where a service can be reached
	$(BIN)/python .ci/audit.py

format: $(STAMP)  ## Put the code into its format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/.docs  ## Build the site into docs/_build/html; needs no network once .venv has the extra docs
	$(BIN)/python -m sphinx -b html -j auto -n -W --keep-going -q docs docs/_build/html
	@echo "open docs/_build/html/index.html"

.venv/.docs: $(STAMP)
	$(BIN)/uv pip install --quiet --python $(BIN)/python -e '.[docs]'
	touch $@

mutants: $(STAMP)  ## Change the code in small ways, and see whether the tests notice: what changed, or MODULE=fedsim/server/server.py
	$(BIN)/python tests/tools/mutants.py $(MODULE) $(if $(SAMPLE),--sample $(SAMPLE))

bench: $(STAMP)  ## Measure training against bare torch, on data that needs no download
	$(BIN)/python benchmarks/works.py --works W2 W4

clean:  ## Remove what was built; runs stay
	rm -rf .venv build docs/_build docs/generated *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
