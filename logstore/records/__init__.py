"""Record log: all changes of the catalog, in a bucket of its own. A lost catalog is rebuilt from the record log.

Source: Aerospike durable deletes and the tomb raider.
"""
