"""Cursors: what each subscription has acknowledged."""
