"""The web application itself: server, limits, health, static page, query process."""
