"""The soak's auditor: what it reads, and how it judges. It uses no code of the product."""
