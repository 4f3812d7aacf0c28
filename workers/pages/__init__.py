"""Pages for a browser: templates, and how they are filled."""
