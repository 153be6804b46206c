"""Plain data that travels between the packages."""
