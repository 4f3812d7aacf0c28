"""Services that read and change the complete state of subscriptions."""
