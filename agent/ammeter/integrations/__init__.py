"""One line for programs of a training framework. Each module imports its framework, which is never a dependency.

    from ammeter.integrations.huggingface import AmmeterCallback
    from ammeter.integrations.lightning import AmmeterCallback
    from ammeter.integrations.fabric import AmmeterCallback
    from ammeter.integrations.accelerate import AmmeterTracker
    from ammeter.integrations.torchtitan import AmmeterLogger

Each starts a run as ammeter.watch() does, and hands over what the framework knows: its configuration, metrics of the
evaluation, epochs, and the step at which a resumed training begins. `ammeter run` finds the same: see loaded.py.
"""

from contextlib import suppress

with suppress(ImportError):  # each module names what is missing
    import torch._dynamo  # noqa: F401 - `ammeter run` begins here, before a module of Ammeter is half imported
