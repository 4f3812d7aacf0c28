"""Coordination on a real ZooKeeper."""
