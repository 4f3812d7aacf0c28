"""HTML pages: templates and the functions that fill them."""
