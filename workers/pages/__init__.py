"""Pages for a browser: templates and the functions that fill them."""
