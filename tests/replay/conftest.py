"""The server and the world of `tests/workflows`, for what is recorded within a test."""

from tests.workflows.conftest import house, loop, new_world, pytest_pyfunc_call, temporal

__all__ = ["house", "loop", "new_world", "pytest_pyfunc_call", "temporal"]
