"""Coordination on ZooKeeper: sessions, who is alive, and who owns which bundle."""
