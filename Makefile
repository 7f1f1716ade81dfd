PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.locked
RUNS   ?= 5

# Each command and each worker would compile all of subcut again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: demo picture test test-slow test-all test-versions test-oldest test-newest test-torch test-windows test-macos-like said dist check types docs bench recipes gpu known producers errors lock clean help

$(STAMP): requirements.lock tests/ncnn.lock pyproject.toml
	@echo "setting up: subcut and its libraries go into $(VENV)/, about a minute …"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@# apart: pnnx's wheel asks for PyTorch, which its program does not need
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes -r tests/ncnn.lock \
		|| echo "no ncnn for this machine: its tests are skipped"
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

demo: $(STAMP) ## find a planted fault, cut pool1..res2a_relu out of a ResNet-50, read a board's dumps
	@$(BIN)/python -m fixtures.demo build/demo

picture: $(STAMP) ## take all pictures of README and docs anew (needs chromium; 10 minutes)
	$(BIN)/python -m fixtures.picture docs/images/report.png
	$(BIN)/python -m fixtures.page_pictures docs/images $(addprefix --silero ,$(wildcard build/trained/silero_vad/data/silero_vad.onnx))
	$(BIN)/python -m benchmarks.machines --only compare,sweep,bisect --picture docs/images/machines.svg

test: $(STAMP) build/cache/.web ## run the quick tests
	$(BIN)/python -m pytest -n 2 -m "not slow and not rare"

# onnxruntime-web, for the tests of the candidate `web`; without npm they are skipped, and say so.
build/cache/.web: subgraph/runtime/backends/web.py | $(STAMP)
	mkdir -p build/cache
	if command -v npm >/dev/null; then XDG_CACHE_HOME=$$PWD/build/cache $(BIN)/python -c \
		'from subgraph.runtime.backends import web; web.fetch(web.NEWEST)'; fi
	touch $@

# axe-core, for the test of the page of `subcut view`; without npm it is skipped, and says so.
build/cache/.axe: Makefile
	mkdir -p build/cache
	if command -v npm >/dev/null; then npm install --prefix build/cache --no-save --ignore-scripts --no-audit --no-fund \
		--loglevel=error axe-core@4.10.3; fi
	touch $@

test-slow: $(STAMP) build/cache/.web build/cache/.axe ## run the slow tests: whole networks, fuzzed files through the command, kills (CI: a fourth per commit, SLOW_TURNS=4)
	$(BIN)/python -m pytest -n 2 -m "slow and not rare" -rs

said: $(STAMP) ## write the transcripts of tests/said/ anew; then read how they differ
	SAID=write $(BIN)/python -m pytest -n 2 tests/end_to_end/test_said.py

test-all: $(STAMP) ## run every test, each law on all its examples, before a release (an hour)
	SUBCUT_EXAMPLES=all $(BIN)/python -m pytest -n 2 -rs
	$(MAKE) test-versions

# The least version of each dependency, as pip reads it.
OLDEST = $(PYTHON) -c 'import re, tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	print(*(re.sub(r">=(\d+)(\.\d+)?,.*", lambda m: "==" + m[1] + (m[2] or ".0") + ".*", d) for d in project["dependencies"]))'
# Each newer Python of this machine, one of each minor version; without any, that of .venv.
NEWER = $$(found=; for minor in 12 13 14 15; do \
	for python in python3.$$minor "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.$$minor.*/bin/python; do \
	"$$python" -c '' 2>/dev/null && echo "$$python" && found=1 && break; done; done; \
	[ $$found ] || { echo "no newer Python here: that of $(VENV), and the newest libraries" >&2; echo $(PYTHON); })
# What meets onnx, onnxruntime and numpy; and what meets Python itself.
LIBRARY_TESTS := tests/bodies tests/graph tests/storage/test_tensors.py tests/runtime/test_backends.py tests/runtime/test_capture.py \
	tests/runtime/test_reference_values.py tests/runtime/test_inputs.py tests/commands/test_demo.py
PYTHON_TESTS := tests/runtime/test_worker.py tests/runtime/test_worker_pool.py tests/runtime/executors tests/test_documents.py \
	tests/test_plugins.py tests/test_public_names.py tests/commands/test_help.py
TEST_TOOLS := hypothesis jsonschema onnxruntime-extensions 'pytest>=9,<10' pytest-timeout pytest-xdist
VERSIONS := import platform, numpy, onnx, onnxruntime; \
	print("Python", platform.python_version(), *(m.__name__ + " " + m.__version__ for m in (numpy, onnx, onnxruntime)))
QUICK_OF_VERSIONS := -n 2 -m "not slow and not rare" -k "not openvino and not opencv and not tract and not mnn"

test-versions: test-oldest test-newest ## run the tests of runtimes on the oldest and the newest libraries and Python

# The oldest libraries are laid over those of .venv; the other packages are seen there, but not by the child for onnx, which sees
# the folder that onnx lies in alone.
test-oldest: $(STAMP) ## run the tests of runtimes on the oldest libraries that pyproject.toml allows
	$(PYTHON) -m venv --clear --without-pip .venv-oldest
	$(BIN)/python -m pip --python .venv-oldest/bin/python install --quiet --disable-pip-version-check --no-deps $$($(OLDEST)) protobuf typing_extensions
	.venv-oldest/bin/python -c 'import sys, sysconfig; from pathlib import Path; own = Path(sysconfig.get_path("purelib")); \
		(own / "venv.pth").write_text("import site; site.addsitedir(%r)\n" % str(Path("$(VENV)").absolute() / own.relative_to(sys.prefix)))'
	.venv-oldest/bin/python -c '$(VERSIONS)'
	.venv-oldest/bin/python -m pytest -W ignore::ImportWarning $(QUICK_OF_VERSIONS) $(LIBRARY_TESTS)

test-newest: ## run the tests of runtimes on each newer Python of this machine and the newest libraries
	set -e; for python in $(NEWER); do \
		"$$python" -m venv --clear .venv-newest; \
		.venv-newest/bin/pip install --quiet --disable-pip-version-check --editable . $(TEST_TOOLS); \
		.venv-newest/bin/python -c '$(VERSIONS)'; \
		.venv-newest/bin/python -m pytest $(QUICK_OF_VERSIONS) $(LIBRARY_TESTS) $(PYTHON_TESTS); done

# Publishing it is `twine upload dist/*`, for whoever owns the name. The wheel is tried without twine, whose own packages would
# stand in for one that it does not ask for.
TOOLS := build/dist/tools/bin
dist: ## build wheel and sdist into dist/, and try the wheel in an environment of its own
	rm -rf dist build/dist && mkdir -p dist
	$(PYTHON) -m venv build/dist/tools
	$(TOOLS)/pip install --quiet --disable-pip-version-check 'flit_core>=3.12,<4' twine
	$(TOOLS)/python -c 'from flit_core import buildapi; buildapi.build_wheel("dist"); buildapi.build_sdist("dist")'
	chmod 644 dist/*
	$(TOOLS)/twine check --strict dist/*
	$(TOOLS)/pip wheel --quiet --disable-pip-version-check --no-deps -w build/dist/again dist/*.tar.gz
	cmp dist/*.whl build/dist/again/*.whl # the sdist holds all of it
	$(PYTHON) -m venv build/dist/clean
	build/dist/clean/bin/pip install --quiet --disable-pip-version-check dist/*.whl
	cd build/dist && clean/bin/subcut demo demo -q && cd demo && { ../clean/bin/subcut bisect model.onnx -c wrong.py -q; [ $$? = 1 ]; }

# CPU builds of PyTorch have an index of their own: name it with PIP_EXTRA_INDEX_URL where the usual one has those for CUDA.
test-torch: ## run the tests that need PyTorch, in a venv of its own
	$(PYTHON) -m venv .venv-torch
	.venv-torch/bin/pip install --quiet --disable-pip-version-check torch==2.13.0 onnxscript==0.7.2 --editable . $(TEST_TOOLS)
	.venv-torch/bin/python -m pytest -n 2 tests/origins/torch tests/origins/test_source.py tests/runtime/test_python_objects.py \
		tests/origins/test_source_metadata.py tests/end_to_end/test_partial_backend.py tests/end_to_end/test_exported.py \
		tests/runtime/test_python_objects.py

# `KIND=all`: also the quick tests of what is not about POSIX; `KIND=slow`: a sweep, and kills at ten moments.
test-windows: $(STAMP) ## run the tests of Windows under wine (3 minutes; the first time 3 more, 2 GB of disk, and apt as root)
	bash tests/windows/run.sh $(KIND)

test-macos-like: $(STAMP) ## run the quick tests of processes, files and commands without what macOS lacks (8 minutes)
	PYTHONPATH=tests/macos $(BIN)/python -m pytest -n 2 -m "not slow and not rare" -W "ignore:Module already imported" \
		tests/system tests/storage tests/runtime tests/end_to_end

check: $(STAMP) ## formatting, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(MAKE) --no-print-directory --jobs 2 types types-win32 types-darwin

types:
	$(BIN)/mypy

# Each system has a cache of its own: in one they would undo each other's.
types-%:
	$(BIN)/mypy --platform $* --cache-dir .mypy_cache/$* subgraph

docs: .venv-docs/.locked ## build the documentation into build/docs/; a warning or a broken link is an error
	.venv-docs/bin/python -m sphinx -q -W --keep-going -b html docs build/docs
	@echo "build/docs/index.html"

# What the site needs, and no more: the site's tools, and what subcut imports. `conf.py` finds subcut beside it.
.venv-docs/.locked: docs/requirements.lock
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/pip install --quiet --disable-pip-version-check --require-hashes -r docs/requirements.lock
	touch $@

# The first minutes say most of speed; the rest is about right answers, and about large models.
BENCHES = trial search cut criteria agreement laws recorded real bodies large
bench: $(addprefix bench-,$(BENCHES)) ## measure beside the peers (RUNS=5; three hours, 9 GB of disk); `make bench-trial` measures one thing, and so on

bench-trial bench-cut: OPTIONS = --runs $(RUNS)
bench-large: OPTIONS = --hidden 1280 --inner 5120 --memory 470M --bisect
bench-%: .venv-bench/.locked
	.venv-bench/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --force-reinstall .
	.venv-bench/bin/python -m benchmarks.$* $(OPTIONS)

.venv-bench/.locked: benchmarks/requirements.lock
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/pip install --quiet --disable-pip-version-check --require-hashes -r benchmarks/requirements.lock
	touch $@

recipes: $(STAMP) ## try the recipes of docs/candidates/ that install here, each in a venv of its own, the converters, and blame with all releases (40 minutes, 9 GB of disk)
	$(BIN)/python -m benchmarks.recipes
	$(BIN)/python -m benchmarks.conversions
	$(BIN)/python -m benchmarks.blame

# Polygraphy is among the packages of .venv-bench; `GPU_PYTHON` is a Python that has onnxruntime-gpu, else 2 GB are installed.
gpu: .venv-bench/.locked ## an NVIDIA GPU by CUDA: cut, compare, bisect, blame, sweep beside polygraphy (ten minutes; without a GPU it says so)
	.venv-bench/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --force-reinstall .
	.venv-bench/bin/python -m benchmarks.gpu $(if $(GPU_PYTHON),--python $(GPU_PYTHON))

# Releases that are not here go into environments of their own; those that an entry names already are not run again (ALL=--all).
KNOWN := ort $(addprefix ort==,1.15.1 1.17.1 1.18.1 1.19.2 1.20.1 1.22.1 1.24.4 1.27.0 1.31.1 1.32.0) \
	opencv $(addprefix opencv==,4.7.0.72 4.8.1.78 4.9.0.80 4.10.0.84 4.13.0.92) openvino:precision=f32 \
	$(patsubst %,openvino==%:precision=f32,2024.0.0 2025.1.0 2025.4.1 2026.0.0 2026.1.0) tract tract==0.22.4 mnn qnn-htp
known: $(STAMP) ## run the entries of `subcut known` on the releases that they do not name yet, and write the pages of docs/known (all of them: 40 minutes, 5 GB of disk)
	$(BIN)/python -m benchmarks.known $(ALL) $(KNOWN)

producers: $(STAMP) ## read what eight tools record of two networks, each tool in a venv of its own (20 minutes, 7 GB of disk)
	$(BIN)/python -m benchmarks.producers

errors: $(STAMP) ## write docs/errors.md from docs/errors.toml and the codes of the source
	$(BIN)/python -m docs.error_codes

lock: ## write the lock files anew (needs uv)
	uv pip compile --universal --upgrade --generate-hashes --no-header --no-annotate --quiet --all-extras --group dev pyproject.toml -o requirements.lock
	printf 'ncnn\npnnx\n' | uv pip compile --universal --no-deps --generate-hashes --no-header --no-annotate --quiet - -o tests/ncnn.lock
	uv pip compile --universal --upgrade --generate-hashes --no-header --no-annotate --quiet --all-extras --group bench pyproject.toml -o benchmarks/requirements.lock
	uv pip compile --universal --upgrade --generate-hashes --no-header --no-annotate --quiet --group docs -c requirements.lock pyproject.toml -o docs/requirements.lock

clean: ## remove what make has built
	rm -rf $(VENV) .venv-docs .venv-bench .venv-torch .venv-oldest .venv-newest build

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 12
