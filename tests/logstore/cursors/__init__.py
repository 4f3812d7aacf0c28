"""The room `cursors`."""
