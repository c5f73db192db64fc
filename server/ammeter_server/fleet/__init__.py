"""What a project's runs come to: cost, weekly report, readiness for production."""
