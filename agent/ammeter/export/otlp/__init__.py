"""What `ammeter export --to otlp` sends: metrics, log records, and the requests with them."""
