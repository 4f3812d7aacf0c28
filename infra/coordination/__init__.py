"""Coordination by ZooKeeper: sessions, live workers, and bundle owners."""
