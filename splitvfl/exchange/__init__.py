"""One training step as a conversation between parties, without sockets, threads or files."""
