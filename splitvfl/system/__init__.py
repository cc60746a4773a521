"""Use of the operating system: private folders, locks, signals, memory that stays, and untrusted files."""
