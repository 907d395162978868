"""The built site: what its pages, its search and its look in a browser promise."""
