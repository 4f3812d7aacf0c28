"""Access to a Pulsar cluster: ZooKeeper, bookies, the admin API and the bucket of offloads."""
