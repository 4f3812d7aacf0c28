"""Services that write tiered copies and prove that storage has them."""
