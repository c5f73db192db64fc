"""The long run of the exporters is loaded as frames, too."""

from tests.agent.export.conftest import long as long
