"""Everything that needs a GPU, in one command of less than eight minutes: `make gpu`. __main__.py describes it."""
