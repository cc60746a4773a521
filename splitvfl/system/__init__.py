"""What splitvfl asks of the operating system: folders that nobody else enters, locks, signals, memory that stays."""
