"""Values that add, exactly, and what solves them."""
