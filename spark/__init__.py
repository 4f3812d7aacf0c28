"""Bulk jobs: what is read from storage and catalog shard by shard, compared, and published as a whole."""
