# Two commands: `make bench` and `make test`. Both start from a fresh clone with Python 3.11+, a
# C++ compiler and make, and put everything they install into .venv.
#
#   PYTHON=python3.12            the Python that makes the environments
#   PIP_ARGS='...'               more arguments for pip, such as another index
#   VENV_ARGS='...'              more arguments for venv, such as --system-site-packages
#   CONSTRAINTS=FILE             other pins than CI's
#   BENCH_ARGS, TEST_ARGS        more arguments for `python -m bench` and pytest
#   CORPUS_ARGS                  more arguments for `python -m tests.corpus`
#   CHECKOUT=PATH, TRITON_ARGS   the checkout and more arguments for tools/triton_tests.py
#   PYTHONS, SITES               wheels: more Pythons, and VERSION=FOLDER ... that have torch and Triton
#   HERE=1                       bench, test-gpu and soak with $(PYTHON) itself and what it has: tzero is
#                                built in place, and nothing is downloaded

PYTHON ?= python3
PIP_ARGS ?=
VENV_ARGS ?=
CONSTRAINTS ?= constraints.txt
BENCH_ARGS ?=
TEST_ARGS ?=
CORPUS_ARGS ?=
CHECKOUT ?=
TRITON_ARGS ?=
PYTHONS ?=
SITES ?=

VENV := .venv
BIN := $(VENV)/bin

# Most modules of what is installed are never imported. Python compiles the others when they are.
INSTALL := -m pip install -q --no-compile

ifdef HERE
PY := $(PYTHON)
READY_BENCH := build/.ready-here
READY_DEV := build/.ready-here
else
PY := $(BIN)/python
READY_BENCH := $(VENV)/.ready-bench
READY_DEV := $(VENV)/.ready-dev
endif

# What an editable install bakes in; Python sources are picked up as they are.
BAKED := pyproject.toml setup.py src/tzero/versions.py $(wildcard native/*.cpp native/*.h)

# Warnings of the C++ compiler are errors in a build made here; TZERO_WERROR=0 takes that back.
export TZERO_WERROR ?= 1

# Hundreds of processes import torch. Without bytecode on disk each compiles it anew, for 2 s.
unexport PYTHONDONTWRITEBYTECODE

# What runs beside something else has one process, the rest two.
ifdef BESIDE
WORKERS := 0
JOBS := 1
else
WORKERS := 2
JOBS := 2
.NOTPARALLEL:
endif

# A file stays in one process. tests/conftest.py orders them, the longest first.
BY_FILE := --dist loadfile --no-loadscope-reorder

.PHONY: help bench test test-bench lint types bench-beside-sanitized bench-then-environments environments checks tests tests-beside-checks tidy site test-all test-others test-faults test-verify test-symbolic test-helion sanitized sanitize test-newest test-between test-versions test-gpu test-graphs sanitize-gpu soak soak-gpu corpus triton-tests wheels fix docs clean

help:
	@echo 'make bench     build, and print a table of measurements for this machine'
	@echo 'make test      lint, types, all tests that need no GPU, those about Triton on the newest too'
	@echo 'make test-versions  what depends on Triton, on each release between the oldest and the newest'
	@echo 'make fix       format, and repair what ruff can repair'
	@echo 'make test-gpu  the tests that need a GPU, and those of launches on it'
	@echo 'make sanitize  the tests of native launches under AddressSanitizer and UBSan'
	@echo 'make test-graphs  launches and plans on a GPU once more, as CUDA graphs'
	@echo 'make soak-gpu  the long tests that need a GPU'
	@echo 'make sanitize-gpu  those on a GPU under compute-sanitizer'
	@echo 'make soak      the long tests'
	@echo 'make corpus    host functions of public projects, with and without tzero, as a table'
	@echo 'make triton-tests CHECKOUT=PATH  the unit tests of Triton, without and with tzero.install'
	@echo 'make wheels    a wheel for each Python that is found, and an sdist, in dist/'
	@echo 'make docs      write the tables in docs/ and the map in CONTRIBUTING.md'
	@echo 'make site      the documentation as web pages, in build/site'
	@echo 'make clean     remove environments, builds and caches'

bench: $(READY_BENCH)
	$(PY) -m bench $(BENCH_ARGS)

# `make bench` with few samples, before the dev extra is installed: a package that the benchmark needs
# and only the dev extra brings is missing then.
test-bench: $(VENV)/.ready-bench
	@if test -e $(VENV)/.ready-dev; then \
		echo "SKIPPED: $(VENV) holds the dev extra by now; 'make clean test-bench' runs the bench"; \
	else \
		$(BIN)/python -m bench --quick; \
	fi

test: bench-beside-sanitized lint tests-beside-checks

tests: test-all test-others

# The longest first. Three at a time, since some tests wait for processes and deadlines.
test-others:
	@$(MAKE) --no-print-directory -j 3 -O BESIDE=1 test-newest test-faults sanitize test-verify test-symbolic test-between test-helion

lint: $(VENV)/.ready-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.ready-dev
	$(BIN)/mypy

# The bench and pip take one core, a compiler the other. What the bench prints is not looked at.
bench-beside-sanitized: $(VENV)/.ready-bench
	@printf '%s\n' bench-then-environments sanitized | xargs -P 2 -I TARGET $(MAKE) --no-print-directory BESIDE=1 TARGET

# Tests leave some time unused, in which mypy, clang-tidy and mkdocs run. What those say comes last.
tests-beside-checks: $(VENV)/.ready-dev
	@printf '%s\n' tests checks | xargs -P 2 -I TARGET $(MAKE) --no-print-directory TARGET; \
		status=$$?; cat build/checks.log; exit $$status

bench-then-environments: test-bench
	@$(MAKE) --no-print-directory environments

checks: $(VENV)/.ready-dev
	@mkdir -p build
	@nice -n 19 $(MAKE) --no-print-directory types tidy site > build/checks.log 2>&1

# That of the oldest Helion may fail here; test-helion tries again and says what then.
environments: $(VENV)/.ready-dev
	-@$(MAKE) --no-print-directory $(OLD_HELION)/.made
	@$(MAKE) --no-print-directory $(NEWEST)/.made $(BETWEEN:%=build/triton-%/.made)

INCLUDE = $(shell $(BIN)/python -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
VERSION = $(shell sed -n 's/^TZERO = "\(.*\)"/\1/p' src/tzero/versions.py)
NATIVE_FLAGS = -std=c++17 -isystem $(INCLUDE) -DTZERO_VERSION='"$(VERSION)"'

tidy: $(VENV)/.ready-dev
	printf '%s\n' native/*.cpp | xargs -P $(JOBS) -I FILE $(BIN)/clang-tidy --quiet FILE -- $(NATIVE_FLAGS)

# The extension once more, instrumented. Python's own allocator would hide what is freed too early,
# and what CPython keeps until its end is not ours to report.
SANITIZED := build/sanitized/_native.so
SANITIZERS := -fsanitize=address,undefined -fno-sanitize-recover=undefined
RUNTIMES = $(foreach name,asan ubsan,$(shell $(CXX) -print-file-name=lib$(name).so))

$(SANITIZED): $(wildcard native/*.cpp native/*.h) | $(VENV)/.ready-bench
	@mkdir -p $(dir $@)
	printf '%s\n' $(basename $(notdir $(wildcard native/*.cpp))) | xargs -P $(JOBS) -I NAME $(CXX) -O0 -g1 -fPIC -c \
		-Wall -Wextra -Werror $(NATIVE_FLAGS) $(SANITIZERS) native/NAME.cpp -o $(dir $@)NAME.o
	$(CXX) -shared $(SANITIZERS) $(patsubst native/%.cpp,$(dir $@)%.o,$(wildcard native/*.cpp)) -o $@ -ldl

CAN_SANITIZE = echo 'int main(){}' | $(CXX) -x c++ $(SANITIZERS) - -o /dev/null 2>/dev/null

sanitized: $(VENV)/.ready-bench
	@if $(CAN_SANITIZE); then $(MAKE) --no-print-directory $(SANITIZED); fi

# test_native.py is about the installed build. Pytest leaves standard error alone, for the report of
# a sanitizer, which ends the process.
sanitize: $(VENV)/.ready-dev
	@$(MAKE) --no-print-directory sanitized
	@if ! $(CAN_SANITIZE); then \
		echo "SKIPPED: $(CXX) cannot link with the sanitizers (on Debian they come with g++)"; \
	else \
		LD_PRELOAD='$(RUNTIMES)' ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc TZERO_CPU=1 \
		$(BIN)/python -m pytest -q --capture sys -n $(WORKERS) $(BY_FILE) -k native --native $(CURDIR)/$(SANITIZED) \
			--ignore tests/native/test_native.py tests/launches/test_rows.py \
			tests/launches/test_fast_path.py tests/launches/test_installed.py tests/plans tests/native tests/tune/test_select.py tests/tune/test_select_native.py; \
	fi

# TZERO_CPU=1: these tests are about the CPU backend, also on a machine that has a GPU.
test-all: $(VENV)/.ready-dev
	TZERO_CPU=1 $(BIN)/python -m pytest -n 2 $(BY_FILE) -m 'not gpu and not soak' --ignore tests/faults $(TEST_ARGS)

# In processes that have run nothing else: some rows fork, which is not safe beside just any threads.
test-faults: $(VENV)/.ready-dev
	$(BIN)/python -m pytest -n $(WORKERS) $(BY_FILE) tests/faults $(TEST_ARGS)

# The plans' own tests once more, with every call recorded again and compared with its plan. A third
# is about replays, of which there are none then; their skips are not listed.
test-verify: $(VENV)/.ready-dev
	TZERO_CPU=1 TZERO_VERIFY=1 $(BIN)/python -m pytest -r fE -n $(WORKERS) $(BY_FILE) -m 'not gpu and not soak' tests/plans $(TEST_ARGS)

# And once more, with plans over sizes from the first call on. Left out: what Python replays, which has
# no such plans, the tests of such plans, and a host function that cannot be followed.
test-symbolic: $(VENV)/.ready-dev
	TZERO_CPU=1 $(BIN)/python -m pytest -r fE -n $(WORKERS) $(BY_FILE) -m 'not gpu and not soak' --symbolic \
		-k 'not python and not native-permute' --ignore tests/plans/test_sized.py tests/plans $(TEST_ARGS)

# The oldest Helion that is supported; the others are those of the constraints. What depends on the
# version is tested in each run; `make test-helion HELION_TESTS=tests/integrations/helion` runs all.
OLD_HELION := build/helion-1.4.0
HELION_TESTS := $(patsubst %,tests/integrations/helion/test_%.py,changes compat install keys)

$(OLD_HELION)/.made: | $(VENV)/.ready-dev
	@rm -rf $(OLD_HELION)
	@$(BIN)/python $(INSTALL) $(PIP_ARGS) --no-deps --target $(OLD_HELION) helion==1.4.0
	@touch $@

test-helion: $(VENV)/.ready-dev
	@$(MAKE) --no-print-directory $(OLD_HELION)/.made || echo "SKIPPED: pip cannot install Helion 1.4.0"
	@if test -f $(OLD_HELION)/.made; then \
		TZERO_CPU=1 PYTHONPATH=$(CURDIR)/$(OLD_HELION) $(BIN)/python -m pytest -q -n $(WORKERS) $(BY_FILE) \
			$(HELION_TESTS) $(TEST_ARGS); \
	fi

# What depends on Triton, on its newest release: the CPU backend, launches, how kernels compile, and of
# plans those tests that are about launches. That each guard is needed, the pinned one shows.
NEWEST := build/newest
NEWEST_TESTS := tests/cpu tests/launches/test_fast_path.py tests/adapters tests/plans/test_replay.py \
	tests/backends/test_triton_*.py
PACKAGES = -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])'

# An environment with that Triton alone; everything else it finds in .venv, by a path file.
define with-triton
	@rm -rf $(@D)
	@$(BIN)/python -m venv $(@D)
	@$(@D)/bin/python $(INSTALL) $(PIP_ARGS) --no-deps $(1)
	@{ $(BIN)/python $(PACKAGES); echo $(CURDIR)/src; } > `$(@D)/bin/python $(PACKAGES)`/venv.pth
	@touch $@
endef

$(NEWEST)/.made: constraints-newest.txt | $(VENV)/.ready-dev
	$(call with-triton,-c constraints-newest.txt triton)

test-newest: $(NEWEST)/.made
	TZERO_CPU=1 $(NEWEST)/bin/python -m pytest -n $(WORKERS) $(BY_FILE) \
		-m 'not gpu and not soak' $(NEWEST_TESTS) $(TEST_ARGS)

# The releases between the pinned one and the newest. `make test` launches a kernel of each kind with
# them; test-versions runs what test-newest does.
BETWEEN := 3.7.1 3.8.0
BRIEF_TESTS := tests/cpu/test_driver.py tests/cpu/test_descriptors.py tests/cpu/test_launching.py \
	tests/adapters tests/launches/test_fast_path.py
ON_EACH = for version in $(BETWEEN); do echo "Triton $$version"; TZERO_CPU=1 \
	build/triton-$$version/bin/python -m pytest -q -n $(WORKERS) $(BY_FILE) -m 'not gpu and not soak'

build/triton-%/.made: | $(VENV)/.ready-dev
	$(call with-triton,triton==$*)

test-versions: $(BETWEEN:%=build/triton-%/.made)
	@$(ON_EACH) $(NEWEST_TESTS) $(TEST_ARGS) || exit 1; done

test-between: $(BETWEEN:%=build/triton-%/.made)
	@$(ON_EACH) $(BRIEF_TESTS) $(TEST_ARGS) || exit 1; done

test-gpu: $(READY_DEV)
	$(PY) -m pytest -m 'gpu and not soak' tests/gpu tests/tune $(TEST_ARGS)
	$(PY) -m pytest -m 'not soak' tests/launches $(TEST_ARGS)
	@$(MAKE) --no-print-directory test-graphs

# Those of launches and plans once more, with CUDA graphs from the first replay on. Those of plans are
# about the CPU without `--cuda`; the other files of tests/plans read memory or count what only is so
# there.
GRAPHS := TZERO_GRAPHS=2 TZERO_GRAPHS_AFTER=1
ON_CUDA := $(patsubst %,tests/plans/test_%.py,aliasing arguments replay torch_ops views world_classes)

test-graphs: $(READY_DEV)
	$(GRAPHS) $(PY) -m pytest -m 'not soak' tests/gpu/test_plans.py tests/gpu/test_launching.py \
		tests/gpu/test_cuda_plans.py tests/gpu/test_cuda_kernels.py tests/gpu/test_dispatch.py \
		tests/gpu/test_installed.py tests/launches/test_rows.py tests/launches/test_reentry.py \
		$(TEST_ARGS)
	$(GRAPHS) $(PY) -m pytest -m 'not soak' --cuda $(ON_CUDA) tests/hostile/test_rows.py $(TEST_ARGS)

# Under the sanitizer launches wait for one another, so what is about two streams at once is left out.
# What the driver refuses is what some tests are about; it is the kernels' memory that is checked. A
# backtrace would hold Python's frames, and with them tensors that other tests want to see gone.
CHECKED := compute-sanitizer --error-exitcode 9 --report-api-errors no --show-backtrace no

sanitize-gpu: $(READY_DEV)
	$(CHECKED) $(PY) -m pytest -q -m gpu tests/gpu/test_launching.py \
		-k 'native and not stream_of_the_moment and not before_it_on_its_stream'
	$(CHECKED) $(PY) -m pytest -q -k 'native and not stream_of_the_moment' tests/launches/test_rows.py
	$(CHECKED) $(PY) -m pytest -q tests/gpu/test_graphs.py tests/gpu/test_graph_copies.py \
		-k '(results_are and pooled) or numbers or reset_drops'
	$(CHECKED) $(PY) -m pytest -q tests/gpu/test_steps.py -k 'not memory and not streams'

soak: $(READY_DEV)
	TZERO_CPU=1 $(PY) -m pytest -m 'soak and not gpu' $(TEST_ARGS)

soak-gpu: $(READY_DEV)
	$(PY) -m pytest -m 'soak and gpu' tests/gpu $(TEST_ARGS)

# CORPUS_ARGS=--write records the verdicts and writes the page; parts of ids choose cases.
corpus: $(READY_DEV)
	TZERO_CPU=1 $(PY) -m tests.corpus $(CORPUS_ARGS)

# From a checkout of the Triton that is installed. TRITON_ARGS='--share 0.05' runs one test of twenty,
# PY=build/triton-3.8.0/bin/python runs them with a Triton of test-versions.
triton-tests: $(READY_DEV)
	@test -n '$(CHECKOUT)' || { echo 'give a checkout of Triton: make triton-tests CHECKOUT=PATH'; exit 2; }
	$(PY) tools/triton_tests.py '$(CHECKOUT)' $(TRITON_ARGS)

wheels: $(READY_DEV)
	$(PY) tools/wheels.py --constraints $(CONSTRAINTS) --pip-args='$(PIP_ARGS)' --sites '$(SITES)' $(PYTHONS)

fix: $(VENV)/.ready-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.ready-dev
	$(BIN)/python -m tests.cpu.table
	$(BIN)/python -m tools.triton_record
	$(BIN)/python -m tests.corpus.table
	$(BIN)/python -m tests.integrations.helion.table
	$(BIN)/python -m tests.unit.map
	$(BIN)/python -m tests.unit.reference
	$(BIN)/python -m bench.chart
	$(BIN)/python -m bench.parts
	$(BIN)/python -m bench.watched
	$(BIN)/python -m bench.searched

# A broken link, a page that is not in the navigation or a name that does not exist is an error. Then a
# browser looks at each page as on a phone, in light and dark, and leaves pictures in build/pictures.
site: $(VENV)/.ready-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build -q --strict
	$(BIN)/python -m tests.unit.site

clean:
	rm -rf $(VENV) build dist src/tzero_runtime.egg-info src/tzero/_native*.so
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find bench src tests -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# Environments. A stamp says that an install finished, so that a repeat costs nothing.

$(VENV)/.ready-bench: $(BAKED) $(CONSTRAINTS) | $(VENV)/.made
	@echo "installing into $(VENV) with $(CONSTRAINTS) (the first time takes a minute or more)"
	@$(BIN)/python $(INSTALL) $(PIP_ARGS) -c $(CONSTRAINTS) setuptools && \
	 $(BIN)/python $(INSTALL) $(PIP_ARGS) -c $(CONSTRAINTS) --no-build-isolation -e '.[bench]' || { \
		echo "pip could not install tzero into $(VENV); its reason is above. If it is about torch and"; \
		echo "triton: the usual index has torch for CUDA, which wants a Triton of its own and GBs of"; \
		echo "packages. Give pip an index with torch's CPU build (PyTorch's install page names it):"; \
		echo "  make $(MAKECMDGOALS) PIP_ARGS='--extra-index-url URL'"; \
		exit 1; }
	@$(BIN)/python -c 'import tzero._native' || { \
		echo "NOTE: tzero is installed without its native extension, and works without it. For it,"; \
		echo "install a C++17 compiler and Python's headers (on Debian: g++ python3-dev), run"; \
		echo "'make clean', and try again; 'pip install -v -e .' shows the compiler's words."; }
	@touch $@

# The requirements of extras, without building tzero again.
EXTRAS = import tomllib; extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; \
	print(*extras["dev"], *extras["zig"], sep="\n")

$(VENV)/.ready-dev: $(VENV)/.ready-bench
	@echo "installing what the tests need into $(VENV)"
	@mkdir -p build
	@$(BIN)/python -c '$(EXTRAS)' > build/dev-requirements.txt
	@$(BIN)/python $(INSTALL) $(PIP_ARGS) -c $(CONSTRAINTS) -r build/dev-requirements.txt
	@touch $@

build/.ready-here: $(BAKED)
	@mkdir -p build
	$(PYTHON) -m pip install -q --no-deps --no-build-isolation --no-index -e .
	@$(PYTHON) -c 'import tzero._native'
	@touch $@

%/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "tzero needs Python 3.11 or newer, and '$(PYTHON)' is not. Try: make PYTHON=python3.12"; \
		exit 1; }
	@$(PYTHON) -m venv $(VENV_ARGS) $* || { \
		echo "'$(PYTHON) -m venv' does not work here; on Debian and Ubuntu: apt-get install python3-venv"; \
		rm -rf $*; exit 1; }
	@touch $@
