"""Messages between parties, and the conversations that they are part of."""
