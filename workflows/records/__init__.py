"""Workflows of the record log: flushed, defragmented, replicated, raided for tombstones; and functions over records."""
