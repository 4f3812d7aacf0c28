"""Tables of the record log in the catalog: unflushed changes, the newest manifest, tombstones, and adoption."""
