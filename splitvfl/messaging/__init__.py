"""What crosses between parties: messages, and the conversations that they are part of."""
