"""Resources of a project: cost, weekly report, readiness."""
