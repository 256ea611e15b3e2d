"""What tells operators how the mailserver is: figures, health, and an HTTP address that shows both."""
