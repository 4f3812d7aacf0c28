"""Workflows of the record log: flush, defragmentation, replication, raids, rebuild, and record functions."""
