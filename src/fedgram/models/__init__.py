"""What predicts."""
