"""What `waku-mailserver doctor` looks at. Every check returns findings and changes nothing."""
