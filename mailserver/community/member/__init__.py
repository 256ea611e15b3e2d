"""The member's side: finds the newest magnet link, fetches what is missing, checks it, and keeps the history."""
