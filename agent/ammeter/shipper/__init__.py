"""The parts of the shipper: what is packed, sent, delivered and kept. ship.py runs them."""
