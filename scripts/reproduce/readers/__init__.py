"""What each reader finds of columns, in messages, behind penalties and in scores, and of who was trained on."""
