"""The one composition root: `log` over any ports, `activities` over it, `adapters` and `buckets` from settings.

Production and tests pass through the same functions; nothing else constructs these services.
"""
