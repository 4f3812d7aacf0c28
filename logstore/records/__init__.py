"""The record log: versions of the catalog's rows in a bucket of their own, from which a lost catalog is rebuilt.

`kinds` has the recorded columns, `manifest` the blocks that count, `blocks` their files, `winners` the rule of the
newest version, and `tombstones` the rules of durable deletions. `services` use them over ports.

Source: Aerospike durable deletes and the tomb raider.
"""
