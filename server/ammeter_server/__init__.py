"""The collector of Ammeter: stores, judges and shows training runs."""
