"""What all verdicts share: findings, lifecycle, comparison of runs."""
