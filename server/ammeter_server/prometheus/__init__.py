"""What Prometheus scrapes: samples, exposition, rules, objectives."""
