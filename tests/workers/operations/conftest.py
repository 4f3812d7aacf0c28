"""The run's PostgreSQL."""

from tests.postgres import postgres

__all__ = ["postgres"]
