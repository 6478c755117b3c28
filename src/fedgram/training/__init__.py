"""What methods that are trained in rounds have in common."""
