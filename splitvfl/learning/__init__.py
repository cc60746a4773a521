"""What training needs and no party owns: tasks, optimisers, batches, schedules, randomness, noise, precision."""
