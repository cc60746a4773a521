"""What the partner learns: judging attacks, auditing messages, recording and reporting them."""
