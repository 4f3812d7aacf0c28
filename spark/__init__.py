"""Bulk jobs, which read storage and catalog in parallel parts and publish their output as a whole."""
