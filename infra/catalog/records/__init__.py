"""The record log in the catalog: unflushed changes, known manifests, and tombstones."""
