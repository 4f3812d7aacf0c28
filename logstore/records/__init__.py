"""The record log: record versions in a bucket of their own, from which a lost catalog is rebuilt.

Source: Aerospike durable deletes and the tomb raider.
"""
