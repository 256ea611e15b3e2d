"""BitTorrent for the history archives of communities: libtorrent, in a process of its own."""
