"""Tries a model's precision before its training: `ammeter stress` and `ammeter probe`."""
