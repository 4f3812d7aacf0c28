"""Activities of transaction coordinators, of broadcasts, and of the build of snapshots."""
