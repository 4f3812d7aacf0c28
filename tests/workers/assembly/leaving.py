"""A module that ends the process that imports it, as a script without a guard does."""

raise SystemExit("planned")
