"""Use of the operating system: private folders, locks, signals, and memory that stays."""
