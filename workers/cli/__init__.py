"""Command line `sexton`. Scripts rely on the names of commands and options, on JSON fields and on exit codes."""

from workers.cli.root_command import app, main

__all__ = ["app", "main"]
