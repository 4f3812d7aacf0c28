"""Start and watch jobs from a program: `Sexton` has one typed method a job."""

from workers.client.sexton import Sexton

__all__ = ["Sexton"]
