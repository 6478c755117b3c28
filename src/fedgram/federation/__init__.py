"""What a method sees, and what it shares."""
