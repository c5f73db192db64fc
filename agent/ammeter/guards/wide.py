"""The name under which 0.1 pickled a hook: a model saved whole while the precision guard was active refers to it."""

from ammeter.guards.float32_module import _restored_hook as _nothing

__all__ = ["_nothing"]
