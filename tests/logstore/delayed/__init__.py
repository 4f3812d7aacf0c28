"""Delayed messages: rows, snapshots, merges and the tracker, all in memory."""
