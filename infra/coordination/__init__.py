"""Coordination by ZooKeeper: sessions, live workers, and the owners of bundles."""
