"""The record log: its flushes, its defragmentation, raids for tombstones, replicas, and functions that end records."""
