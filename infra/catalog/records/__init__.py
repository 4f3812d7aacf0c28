"""The catalog's side of the record log: what changed, what was flushed, and tombstones."""
