"""Shows traces in a browser: a server on loopback, with the Perfetto UI or with the one file that a page asks for."""
