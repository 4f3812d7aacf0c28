"""Contracts of the ports of Pulsar clusters, for the fake and for ZooKeeper."""
