"""The web application itself: server, health, static page, query process."""
