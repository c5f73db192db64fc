"""Entry points of Lightning: callbacks that each Trainer or Fabric gets where AMMETER_LIGHTNING=1.

Lightning calls these functions in every program of an environment with Ammeter. Without the variable they import
nothing of it, and an error in them would end the program.
"""

import os


def for_trainer():
    """Returns the callbacks of a Trainer."""
    return _callbacks("lightning")


def for_fabric():
    """Returns the callbacks of a Fabric."""
    return _callbacks("fabric")


def _callbacks(integration):
    if not os.environ.get("AMMETER_LIGHTNING"):
        return []
    try:
        from importlib import import_module

        from ammeter.environment.settings import asked_for_in_lightning

        if not asked_for_in_lightning():
            return []
        return [import_module(f"ammeter.integrations.{integration}").AmmeterCallback()]
    except Exception as error:  # noqa: BLE001 - the promise: the program runs, watched or not
        import logging

        logging.getLogger("ammeter").warning(
            "ammeter cannot watch this program (%s: %s); it runs without", type(error).__name__, error
        )
        return []
