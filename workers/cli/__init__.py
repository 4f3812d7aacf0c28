"""The command line `sexton`: a contract that others script against (names, options, JSON fields, exit codes)."""

from workers.cli.app import app, main

__all__ = ["app", "main"]
