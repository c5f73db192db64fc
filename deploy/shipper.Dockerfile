# The shipper, as a sidecar of a training pod: no torch. docker build -f deploy/shipper.Dockerfile -t ammeter-shipper:0.2.0 .
FROM python:3.11.13-slim-bookworm AS build
# Every distribution comes from a lock file with hashes (make lock); our own is built without a look at any index.
COPY deploy/locks /source/deploy/locks
RUN python -m venv /opt/build \
 && /opt/build/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r /source/deploy/locks/build.txt
RUN python -m venv /opt/ammeter \
 && /opt/ammeter/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r /source/deploy/locks/shipper.txt
COPY agent /source/agent
# what `ammeter runbook` prints: a link in the source
COPY alerts/runbooks /source/alerts/runbooks
# There is no C compiler here: what the agent would compile reads gradients, and nothing trains in this image.
RUN /opt/build/bin/pip wheel --no-deps --no-index --no-build-isolation --wheel-dir /wheels /source/agent \
 && /opt/ammeter/bin/pip install --no-deps --no-index --no-cache-dir /wheels/*.whl \
 && /opt/ammeter/bin/pip uninstall --yes pip setuptools

FROM python:3.11.13-slim-bookworm
RUN useradd --system --uid 10001 --create-home --home-dir /var/lib/ammeter ammeter
COPY --from=build /opt/ammeter /opt/ammeter
ENV PATH=/opt/ammeter/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /var/lib/ammeter
# It listens nowhere: healthy is whoever can read the journals.
HEALTHCHECK --interval=30s --timeout=5s CMD ["python", "-c", "import os; os.listdir('/journals')"]
CMD ["ammeter", "ship", "/journals"]
