"""Communities: their history as archives over BitTorrent (61/STATUS). The owner's side makes them, the member's fetches
them."""
