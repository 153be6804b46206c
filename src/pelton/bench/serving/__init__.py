"""`pelton bench serve`: a load on a server, and what comes of it."""
