"""The record log: versions of the catalog's rows in a bucket of their own, from which a lost catalog is rebuilt.

`kinds` says what is recorded, `manifest` which blocks count, `blocks` how they are stored, `winners` which version of a
record counts, `tombstones` what a durable delete leaves and when that may be removed. `services` do it over ports.

Source: Aerospike durable deletes and the tomb raider.
"""
