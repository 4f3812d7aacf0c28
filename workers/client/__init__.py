"""Client for programs that start and watch jobs."""

from workers.client.sexton import Sexton

__all__ = ["Sexton"]
