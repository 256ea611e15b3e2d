"""History requests: opened, answered from the store, page by page."""
