"""What the daemon and the nightly job tell each other, in files beside the store."""
