# make install | demo | docs | stack | secrets | dashboards | boards | deploy | lock | test | containers | check | bench | bench-collector | zoo | wild | cases | public | gpu | gpu-wheels. All lives in .venv;
# nothing outside this folder is changed, except that `make test`, run as root on Debian, installs the real parts the tests talk to.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=
PEERS := .venv-bench
COMPILED := agent/hatch_build.py agent/ammeter/tensors/reading.c

.PHONY: install demo docs stack secrets dashboards boards deploy lock test containers check bench bench-collector zoo wild cases public gpu gpu-wheels parts clean

install: $(STAMP)

$(STAMP): constraints.txt requirements-dev.txt agent/pyproject.toml server/pyproject.toml $(COMPILED)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Ammeter needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V). Try: make PYTHON=python3.11"; exit 1; }
	@echo "installing into $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install -qq --disable-pip-version-check $$(grep '^torch==' constraints.txt)
	@$(BIN)/pip install -qq --disable-pip-version-check -c constraints.txt -r requirements-dev.txt -e agent -e server
	@# Without their dependencies: torchtitan asks for a datasets that excludes that of s3fs, and of the other only axe-core is used.
	@$(BIN)/pip install -qq --disable-pip-version-check -c constraints.txt --no-deps torchtitan axe-playwright-python
	@touch $@

demo: install
	@$(BIN)/ammeter-server demo $(ARGS)

# The site of the documents, in build/site/html.
docs: install
	@$(BIN)/python -m website

# The services of docker-compose.yml without containers, on loopback; ARGS=--demo trains with a fault.
stack: install
	@$(BIN)/python -m deploy.stack $(ARGS)

# .env and deploy/secrets with random values, for docker-compose.yml; what is there stays.
secrets:
	@sh deploy/secrets.sh

# The Grafana boards in dashboards/boards, from the Python beside them.
dashboards: install
	@$(BIN)/python -m dashboards.generate

# Their pictures in docs/pictures: real runs, a real Prometheus, and Grafana's components in Chromium. Needs node and npm.
boards: dashboards parts
	@$(BIN)/python -m dashboards.pictures $(ARGS)

# What of deploy/ follows from rules, boards and alerts/.
deploy: install
	@$(BIN)/python -m deploy.generate

# What the images install, with hashes: after a change of constraints.txt or of a distribution's dependencies.
lock: install
	@$(BIN)/pip install -qq --disable-pip-version-check -c constraints.txt uv
	@$(BIN)/python -m deploy.lock

parts:
	@sh tests/parts.sh

# One worker more than cores: some tests wait for the intervals of Alertmanager or Prometheus. Bytecode is kept whatever
# the environment says: hundreds of programs import Ammeter, and each would compile it. What was installed is written to
# the disk before: otherwise the first tests wait for it in fsync().
test: export PYTHONDONTWRITEBYTECODE =
test: install parts
	@sync
	@$(BIN)/pytest --numprocesses $$(($$(nproc) + 1)) --dist loadfile --no-loadscope-reorder $(ARGS) \
	  || { [ $$? -eq 1 ] && $(BIN)/python -m tests.again; }

# docker-compose.yml with real containers: builds the images, brings the services up, and looks at them.
containers: install
	@PATH="$$PATH:/usr/sbin:/usr/lib/podman" sh tests/parts.sh podman buildah debootstrap runc netavark aardvark-dns iptables
	@$(BIN)/pip install -qq --disable-pip-version-check -c constraints.txt podman-compose
	@$(BIN)/pytest tests/containers -v --numprocesses 0 --timeout 1500 $(ARGS)

check: install
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

# What the benchmark compares with, apart from .venv, whose packages it sees. Without a network it measures Ammeter alone.
$(PEERS)/.installed: bench/requirements.txt | $(STAMP)
	@echo "installing what to compare with into $(PEERS) ..."
	@$(BIN)/python -m venv $(PEERS)
	@sites="import sysconfig; print(sysconfig.get_path('purelib'))"; \
	  echo "import site; site.addsitedir('$$($(BIN)/python -c "$$sites")')" \
	  > "$$($(PEERS)/bin/python -c "$$sites")/everything_else.pth"
	@$(PEERS)/bin/pip install -qq --disable-pip-version-check -c constraints.txt -r bench/requirements.txt && touch $@ \
	  || echo "some of it could not be installed; the tables will say what is left out"

bench: install $(PEERS)/.installed
	@$(PEERS)/bin/python -m bench.agent $(ARGS)

bench-collector: install $(PEERS)/.installed
	@sh tests/parts.sh victoria-metrics
	@$(PEERS)/bin/python -m bench.collector $(ARGS)

zoo: install
	@$(BIN)/python -m bench.zoo $(ARGS)
	$(if $(findstring --only,$(ARGS)),,@$(BIN)/python -m bench.zoo.guards $(filter --write --quick,$(ARGS)))

# Faults in generated programs that know nothing of Ammeter; some use a training framework.
wild: install
	@$(BIN)/python -m bench.wild $(ARGS)

# Threads of public issue trackers, rebuilt as programs.
cases: install
	@$(BIN)/python -m bench.cases $(ARGS)

# Training programs of others, fetched by git; what they import goes where the benchmark's packages are.
$(PEERS)/.public: bench/public/requirements.txt constraints.txt | $(PEERS)/.installed
	@$(PEERS)/bin/pip install -qq --disable-pip-version-check -c constraints.txt -r bench/public/requirements.txt && touch $@

public: install $(PEERS)/.public
	@$(PEERS)/bin/python -m bench.public $(ARGS)

# Without `install`, as the machine may have no network: the first Python whose torch sees a GPU, or GPU_PYTHON, is used.
gpu:
	@GPU_PYTHON=$(GPU_PYTHON) $(PYTHON) -m bench.agent.gpu.start $(ARGS)

# What `make gpu` needs beside torch, for a machine without a network: copy build/gpu/wheels there. ARGS: its Python.
gpu-wheels:
	@$(PYTHON) -m bench.agent.gpu.wheels $(or $(ARGS),3.12)

clean:
	@rm -rf $(VENV) $(PEERS) build dist
