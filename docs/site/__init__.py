"""How the docs become a site: `make site`."""
