"""Calls that no patch or hook observes: their effect on torch's objects shows them, and their callbacks are replayed.

A program that copied a function before Ammeter was imported, that brings its own version of it, or that runs a method
of a subclass makes such calls. Each part costs nothing while its calls are observed.
"""
