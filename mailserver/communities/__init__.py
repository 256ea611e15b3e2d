"""Communities and their history archives: channels, magnet links, the two formats, the index, what is checked."""
