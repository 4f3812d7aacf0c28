"""Builds of something of many topics, by a bulk job and switches; the jobs are in rooms of their own."""
