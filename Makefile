# Every target sets up what it needs in .venv. A fresh machine needs Python >= 3.11 and a C compiler; the parts that
# compare with Apache Kafka also need a JDK 17 and Maven.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
NATIVE := $(wildcard kafkalog/_native/*/*.pyx kafkalog/_native/*/*.pxd kafkalog/_native/src/*)
PYTEST := $(PY) -m pytest
PYTEST_FLAGS ?=

export PYSPARK_PYTHON := $(CURDIR)/$(PY)
export PYSPARK_DRIVER_PYTHON := $(CURDIR)/$(PY)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help docs docs-serve man demo demo-serve demo-tiered check quick quick-tests nightly durations planted test lint build conformance crash live live-threads live-tsan soak soak-store fuzz sanitize bench bench-page bench-spark bench-spark-remote bench-spark-table spark-connector spark-versions microbench wheel wheel-smoke clean fuzz-native fuzz-damage
.DEFAULT_GOAL := help

help:  ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-19s %s\n", $$1, $$2}'

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "kafkalog needs Python >= 3.11, but $(PYTHON) is %d.%d; try: make PYTHON=python3.12 ..." % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install -q --upgrade 'pip>=25.1'
	@touch $@

# All packages that the tests, the demo and the benchmarks use, from the package registry.
$(VENV)/.packages: pyproject.toml | $(VENV)/.python
	$(PY) -m pip install -q --group test --group lint --group docs --group spark --group peers
	@touch $@

# "compat" puts the modules on the path, where pkgutil sees them; so Spark finds pyspark_kafkalog from any directory.
$(VENV)/.built: $(NATIVE) setup.py pyproject.toml Makefile $(VENV)/.packages
	$(PY) -m pip install -q --no-build-isolation --config-settings editable_mode=compat -e '.[cli,spark]'
	@touch $@

build: $(VENV)/.built  ## set up the environment and build the native modules in place

docs: $(VENV)/.built  ## build the documentation site in build/site; a broken link or reference is an error
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet

docs-serve: $(VENV)/.built  ## serve the site at http://127.0.0.1:8000 and rebuild it after each change
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs serve

man: $(VENV)/.built  ## write the man pages of the commands to build/man
	$(PY) -m kafkalog.cli.man_pages build/man

demo: $(VENV)/.built  ## run the demo: show, verify, append to, crash and recover a partition of real Kafka, then read it with Spark
	$(PY) -m tests.demo

demo-serve: $(VENV)/.built  ## run the demo of the server: a Java console producer and a Python consumer talk through it
	$(PY) -m tests.demo_serve

demo-tiered: $(VENV)/.built  ## run the demo of tiered storage: a local S3 server, a read by Spark, a restore
	$(PY) -m tests.demo_tiered

# The site's tests open its pages in Chromium.  As root, KAFKALOG_APT=1 installs it from Debian's packages.
.PHONY: browser
browser:
	@command -v chromium >/dev/null || [ "$(KAFKALOG_APT)" != 1 ] || (apt-get update -q && apt-get install -y -q --no-install-recommends chromium) >/dev/null

# The long test suites get this many seconds of one processor: a sample of their files, which changes each day
# (tests/sampling.py).
LANES_SECONDS ?= 150
check: $(VENV)/.built browser  ## run what CI runs: lint, types, sanitizers, wheel, tests (a daily sample of the long test suites)
	$(MAKE) --no-print-directory -j 2 sanitize checked-lint-and-wheel
	$(IN_MEMORY) $(PYTEST) $(TEST_FLAGS) $(SHORT_FLAGS) tests/unit tests/golden tests/property $(PYTEST_FLAGS)
	KAFKALOG_LANES_SECONDS=$(LANES_SECONDS) $(MAKE) --no-print-directory lanes

.PHONY: checked-lint-and-wheel
checked-lint-and-wheel:
	$(MAKE) --no-print-directory lint
	$(MAKE) --no-print-directory wheel-smoke-built

quick: $(VENV)/.built  ## run the checks of a few minutes: lint, types, unit, golden and property tests, recorded scenarios, one Spark read
	$(MAKE) --no-print-directory -j 2 lint quick-tests

# These files start no processes and share little, so a test goes to any free worker.
QUICK := tests/unit tests/golden tests/property tests/conformance/test_scenarios.py \
	tests/spark/test_batch_read.py::test_columns_are_those_that_are_listed
# Temporary directories are in memory if /dev/shm exists, and only those of failed tests are kept.
IN_MEMORY := $(if $(wildcard /dev/shm),PYTEST_DEBUG_TEMPROOT=/dev/shm)
SHORT_FLAGS := --dist worksteal -q -o tmp_path_retention_policy=failed
QUICK_FLAGS := $(SHORT_FLAGS) -m 'not slow'
quick-tests: $(VENV)/.built
	$(IN_MEMORY) $(PYTEST) $(TEST_FLAGS) $(QUICK_FLAGS) $(QUICK) $(PYTEST_FLAGS)

nightly: $(VENV)/.built  ## run the long tests: all crash states, interrupts, kills and faults, fuzzing, a clean build of the wheel
	$(MAKE) --no-print-directory lint
	$(MAKE) --no-print-directory sanitize
	$(MAKE) --no-print-directory wheel-smoke
	KAFKALOG_LONG=1 $(MAKE) --no-print-directory test
	$(MAKE) --no-print-directory spark-versions
	$(MAKE) --no-print-directory fuzz fuzz-native fuzz-damage

# Spark's tests run in separate processes: tests of interrupts may leave a process in a state that disturbs the gateway
# to a JVM (CPython forgets an exception that a trace function raised within a handler).
# A test that hangs ends its worker and shows where it was.
# A file stays with one worker, because its tests share brokers and JVMs; long files begin first (tests/durations.json).
TEST_FLAGS := -n 2 --dist loadfile --no-loadscope-reorder --tb=short -o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true
test: $(VENV)/.built  ## run all tests, without lint
	$(PYTEST) $(TEST_FLAGS) --ignore=tests/spark $(PYTEST_FLAGS)
	$(PYTEST) $(TEST_FLAGS) tests/spark $(PYTEST_FLAGS)

.PHONY: lanes
lanes:
	$(PYTEST) $(TEST_FLAGS) --ignore=tests/spark --ignore=tests/unit --ignore=tests/golden --ignore=tests/property $(PYTEST_FLAGS)
	$(PYTEST) $(TEST_FLAGS) tests/spark $(PYTEST_FLAGS)

durations: $(VENV)/.built  ## measure how long each test file takes, for tests/durations.json
	$(PYTEST) $(TEST_FLAGS) --ignore=tests/spark --junitxml=build/tests.xml
	$(PYTEST) $(TEST_FLAGS) tests/spark --junitxml=build/spark.xml
	$(PY) -m tests.durations build/tests.xml build/spark.xml

planted: $(VENV)/.built  ## plant twenty faults in a copy of the package, one after the other, and list those that `make quick` misses
	$(PY) -m tests.planted

lint: $(VENV)/.built  ## run ruff, mypy --strict, stubtest, cython-lint, and the rules of plain English with proselint
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m mypy.stubtest --mypy-config-file pyproject.toml $(subst /,.,$(basename $(wildcard kafkalog/_native/*/*.pyx)))
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" cython-lint kafkalog/_native
	$(PY) -m tests.prose

conformance: $(VENV)/.built  ## run every script on Apache Kafka 4.4.0 and on kafkalog, and compare
	$(PYTEST) tests/conformance $(PYTEST_FLAGS)

FUZZ_COUNT ?= 2000
FUZZ_DAMAGE_COUNT ?= 500
FUZZ_EXAMPLES ?= 500
FUZZ_SEED ?= 1
fuzz: $(VENV)/.built  ## run long differential fuzzing against Apache Kafka (FUZZ_COUNT, FUZZ_DAMAGE_COUNT, FUZZ_EXAMPLES, FUZZ_SEED)
	$(PY) -m tests.conformance.fuzz --count $(FUZZ_COUNT) --seed $(FUZZ_SEED)
	$(PY) -m tests.conformance.fuzz --count $(FUZZ_DAMAGE_COUNT) --seed $(FUZZ_SEED) --damage
	$(PY) -m tests.conformance.fuzz --count $(FUZZ_COUNT) --seed $(FUZZ_SEED) --compact --ways both
	$(PY) -m tests.conformance.fuzz --count $(FUZZ_DAMAGE_COUNT) --seed $(FUZZ_SEED) --compact --damage
	$(PY) -m tests.conformance.fuzz --count $(FUZZ_DAMAGE_COUNT) --seed $(FUZZ_SEED) --managers --ways both
	$(PY) -m tests.conformance.fuzz --count $(FUZZ_DAMAGE_COUNT) --seed $(FUZZ_SEED) --managers --compact
	$(PY) -m tests.conformance.fuzz_machine --examples $(FUZZ_EXAMPLES) --seed $(FUZZ_SEED)

FUZZ_MINUTES ?= 30
FUZZ_DIFFERENTIAL_COUNT ?= 1000
fuzz-native: $(VENV)/.built  ## run long fuzzing of the native modules, under the sanitizers
	PYTHON=$(CURDIR)/$(PY) bash tests/fuzz/native.sh --minutes $(FUZZ_MINUTES) --seed $(FUZZ_SEED)

fuzz-damage: $(VENV)/.built  ## run long fuzzing of damaged directories: compared with Apache Kafka (FUZZ_DIFFERENTIAL_COUNT), then under the sanitizers (FUZZ_MINUTES)
	$(PY) -m tests.damage.differential --count $(FUZZ_DIFFERENTIAL_COUNT) --seed $(FUZZ_SEED)
	PYTHON=$(CURDIR)/$(PY) bash tests/damage/fuzz.sh --minutes $(FUZZ_MINUTES) --seed $(FUZZ_SEED)

crash: $(VENV)/.built  ## enumerate all crash states, and run long kill -9 tests
	KAFKALOG_LONG=1 $(PYTEST) -s tests/crash $(PYTEST_FLAGS)

LIVE_SECONDS ?= 60
live: $(VENV)/.built  ## run long tests of threads, interrupts, forks and kills on open logs (LIVE_SECONDS for each test)
	KAFKALOG_LONG=1 LIVE_SECONDS=$(LIVE_SECONDS) $(PYTEST) -s tests/live $(PYTEST_FLAGS)

SOAK_MINUTES ?= 20
soak: $(VENV)/.built  ## run a manager of 200 partitions under all kinds of load at once; one disk fails halfway (SOAK_MINUTES)
	$(PY) -m tests.live.soak --minutes $(SOAK_MINUTES)

STORE_SOAK_MINUTES ?= 10
soak-store: $(VENV)/.built  ## run a store's writers, followers and transactions at once, then with kill -9 (STORE_SOAK_MINUTES)
	$(PY) -m tests.live.store_soak --minutes $(STORE_SOAK_MINUTES)
	$(PY) -m tests.live.store_soak --minutes $(STORE_SOAK_MINUTES) --kill

sanitize: $(VENV)/.built  ## run the native tests under AddressSanitizer and UBSan
	PYTHON=$(CURDIR)/$(PY) bash tests/sanitize/run.sh

live-threads: $(VENV)/.built  ## run the tests of tests/live on free-threaded Python (PYTHON_T, default python3.14t; KAFKALOG_APT=1 builds one)
	bash tests/live/free_threaded.sh $(PYTEST_FLAGS)

live-tsan: $(VENV)/.built  ## run the native modules' thread tests under ThreadSanitizer (PYTHON_T: a Python built with it; KAFKALOG_APT=1 builds one)
	bash tests/live/free_threaded.sh --tsan $(PYTEST_FLAGS)

bench: $(VENV)/.built  ## compare with Kafka's classes, aiokafka and kafka-python; prints ratios
	$(PY) -m bench

bench-page: $(VENV)/.built  ## write docs/benchmarks.md from kept results; BENCH_FLAGS=--run measures first (hours), BENCH_FLAGS="--run engine" one group
	$(PY) -m bench.page $(BENCH_FLAGS)
	$(PY) docs/_site/pictures.py

# Spark's Kafka connector supports one version of Spark only: a separate environment that uses the built clone.
CONNECTOR := .venv-connector
$(CONNECTOR)/.packages: pyproject.toml $(VENV)/.built
	$(PYTHON) -m venv $(CONNECTOR)
	$(CONNECTOR)/bin/python -m pip install -q --upgrade 'pip>=25.1'
	$(CONNECTOR)/bin/python -m pip install -q --group test --group peers --group connector
	$(CONNECTOR)/bin/python -m pip install -q --no-build-isolation --config-settings editable_mode=compat -e '.[cli]'
	@touch $@

spark-connector: $(CONNECTOR)/.packages  ## check that reads of a live broker's directories give the same rows as Spark's Kafka connector, which works on the server as on a broker
	$(CONNECTOR)/bin/python -m pytest tests/spark/test_connector.py tests/spark/test_stream_connector.py \
		tests/spark/test_connector_server.py $(PYTEST_FLAGS)

spark-versions: $(VENV)/.built  ## run Spark's tests on PySpark 4.0 and 4.2, or on one of them (SPARK=4.0), downloaded into build/
	$(PY) -m tests.spark_versions $(SPARK)

bench-spark: $(CONNECTOR)/.packages  ## compare the Spark source with Spark's Kafka connector and its broker; prints ratios
	$(CONNECTOR)/bin/python -m bench.spark $(BENCH_FLAGS)

bench-spark-table: $(CONNECTOR)/.packages  ## print all comparisons with the connector as a table: batches of 16 KiB and 1 MB, first and warm runs
	$(CONNECTOR)/bin/python -m bench.spark_table $(BENCH_FLAGS)

bench-spark-remote: $(CONNECTOR)/.packages  ## measure planning over a large bucket, and tiered segments compared with local ones and Spark's connector; prints ratios
	$(CONNECTOR)/bin/python -m bench.spark_remote $(BENCH_FLAGS)

MICRO := .benchmarks
$(VENV)/.bench: pyproject.toml $(VENV)/.packages
	$(PY) -m pip install -q --group bench
	@touch $@

microbench: $(VENV)/.built $(VENV)/.bench  ## compare the project's kernels with their peers and with the last saved run; saves this run
	$(PYTEST) bench/micro --benchmark-group-by=group --benchmark-sort=name --benchmark-name=short --benchmark-max-time=0.5 \
		--benchmark-columns=median,iqr,ops,rounds --benchmark-storage=file://$(MICRO) --benchmark-autosave \
		$(if $(wildcard $(MICRO)/*/*.json),--benchmark-compare) --benchmark-histogram=$(MICRO)/histogram/kernels $(PYTEST_FLAGS)

wheel: $(VENV)/.packages  ## build an sdist, and a wheel from it, in dist/
	rm -rf dist
	$(PY) -m pip install -q 'build>=1.2'
	$(PY) -m build -q --outdir dist .

wheel-smoke: wheel  ## install the wheel in a clean environment and run its smoke test
	PYTHON=$(CURDIR)/$(PY) bash tests/wheel_smoke.sh dist

# The same smoke test without a second compilation: the tree's modules, packed by an sdist and a wheel built from it.
.PHONY: wheel-smoke-built
wheel-smoke-built: $(VENV)/.built
	PYTHON=$(CURDIR)/$(PY) bash tests/wheel_of_built.sh
	PYTHON=$(CURDIR)/$(PY) bash tests/wheel_smoke.sh dist

clean:
	rm -rf build dist .venv .venv-connector *.egg-info kafkalog/_native/*/*.so tests/conformance/driver/target
