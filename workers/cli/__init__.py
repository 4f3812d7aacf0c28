"""Command line `sexton`. Scripts rely on its names, options, JSON fields and exit codes."""

from workers.cli.app import app, main

__all__ = ["app", "main"]
