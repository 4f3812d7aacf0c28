"""Services that tell participants how a transaction ended, and that store and rebuild transaction buffers."""
