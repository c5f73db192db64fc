"""Numbers read out of tensors: one pass, one interface, one file per kind of device."""
