"""The only place that touches objects of torch."""
