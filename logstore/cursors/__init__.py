"""Cursors: the acknowledgements of each subscription."""
