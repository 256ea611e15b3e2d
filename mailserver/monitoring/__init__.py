"""The state of the mailserver for operators: figures, health, and an HTTP address that shows both."""
