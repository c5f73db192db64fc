"""Prometheus output of the collector: samples, exposition format, rules and objectives."""
