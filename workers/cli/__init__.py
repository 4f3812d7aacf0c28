"""Command line `sexton`. Scripts rely on its names, options, JSON fields and exit codes."""

from workers.cli.root_command import app, main

__all__ = ["app", "main"]
