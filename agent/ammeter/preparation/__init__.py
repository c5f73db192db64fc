"""Notes the calls that prepare a training: construction of optimizers and scalers, and loading of their state."""
