"""The packages of Grafana that tests need, in dashboards/render/node_modules."""

from __future__ import annotations

from dashboards import rendering
from tests import parts


def need_packages() -> None:
    """Ends the test if the packages are missing: skipped on a developer's machine, failed if CI=true."""
    parts.need("node")
    if not rendering.is_installed():
        parts.missing(f"the packages of {rendering.RENDER} are not installed; run `npm ci` there, or `make parts`")
