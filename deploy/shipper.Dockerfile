# The shipper, as a sidecar of a training pod: no torch. docker build -f deploy/shipper.Dockerfile -t ammeter-shipper:0.1.0 .
FROM python:3.11.13-slim-bookworm AS build
COPY constraints.txt /source/constraints.txt
COPY agent /source/agent
# what `ammeter runbook` prints: a link in the source
COPY alerts/runbooks /source/alerts/runbooks
# There is no C compiler here: what the agent would compile reads gradients, and nothing trains in this image.
RUN python -m venv /opt/ammeter \
 && /opt/ammeter/bin/pip install --no-cache-dir --disable-pip-version-check -c /source/constraints.txt /source/agent \
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
