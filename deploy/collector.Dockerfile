# The collector. Build it at the root of the repository: docker build -f deploy/collector.Dockerfile -t ammeter-collector:0.1.0 .
FROM python:3.11.13-slim-bookworm AS build
COPY constraints.txt /source/constraints.txt
COPY agent /source/agent
COPY server /source/server
# What links in server/ammeter_server/assets lead to.
COPY alerts/runbooks /source/alerts/runbooks
COPY dashboards/boards /source/dashboards/boards
# There is no C compiler here: what the agent would compile reads gradients, and nothing trains in this image.
RUN python -m venv /opt/ammeter \
 && /opt/ammeter/bin/pip install --no-cache-dir --disable-pip-version-check -c /source/constraints.txt /source/agent /source/server \
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
