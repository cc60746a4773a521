"""Measurement of leaks: judging attacks, auditing messages, recording and reporting both."""
