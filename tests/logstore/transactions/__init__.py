"""Transactions above their catalog: broadcasts, snapshots and rebuilds."""
