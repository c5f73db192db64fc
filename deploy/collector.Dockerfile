# The collector. Build it at the root of the repository: docker build -f deploy/collector.Dockerfile -t ammeter-collector:0.2.0 .
FROM python:3.11.13-slim-bookworm AS build
# Every distribution comes from a lock file with hashes (make lock); our own two are built without a look at any index.
COPY deploy/locks /source/deploy/locks
RUN python -m venv /opt/build \
 && /opt/build/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r /source/deploy/locks/build.txt
RUN python -m venv /opt/ammeter \
 && /opt/ammeter/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r /source/deploy/locks/collector.txt
COPY agent /source/agent
COPY server /source/server
# What links in server/ammeter_server/assets lead to.
COPY alerts/runbooks /source/alerts/runbooks
COPY dashboards/boards /source/dashboards/boards
# There is no C compiler here: what the agent would compile reads gradients, and nothing trains in this image.
RUN /opt/build/bin/pip wheel --no-deps --no-index --no-build-isolation --wheel-dir /wheels /source/agent /source/server \
 && /opt/ammeter/bin/pip install --no-deps --no-index --no-cache-dir /wheels/*.whl \
 && /opt/ammeter/bin/pip uninstall --yes pip setuptools

FROM python:3.11.13-slim-bookworm
RUN useradd --system --uid 10001 --create-home --home-dir /var/lib/ammeter ammeter
COPY --from=build /opt/ammeter /opt/ammeter
ENV PATH=/opt/ammeter/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /var/lib/ammeter
EXPOSE 8480
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s \
  CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8480/readyz', timeout=4)"]
CMD ["ammeter-server", "serve"]
