"""Tests of the record log, away from every server."""
