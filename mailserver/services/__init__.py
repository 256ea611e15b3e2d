"""What the mailserver does for its peers: it archives live envelopes and delivers history."""
