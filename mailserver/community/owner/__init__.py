"""The owner's side of communities: what they are, their history archives, publishing and announcing them."""
