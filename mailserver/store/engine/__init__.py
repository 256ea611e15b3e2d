"""What the engines of the store are made of, whichever keeps the rows: turns, searches, pages, work."""
