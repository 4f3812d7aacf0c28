"""Protobuf messages of Pulsar and BookKeeper. `make protos` generates the modules from the `.proto` files."""
