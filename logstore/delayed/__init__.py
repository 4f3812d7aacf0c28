"""Delayed messages: an index of those whose time has not come, so that no reader fetches them before."""
