"""Plain data that travels between the rooms."""
