"""Training without parties: tasks, optimisers, batches, schedules, randomness, noise, precision."""
