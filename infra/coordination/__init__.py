"""Coordination on ZooKeeper: sessions, live workers, and which of them owns which bundle."""
