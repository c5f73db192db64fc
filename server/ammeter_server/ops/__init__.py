"""Endpoints for operators: health, metrics, rules, runbooks, dashboards."""
