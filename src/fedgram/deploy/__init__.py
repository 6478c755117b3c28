"""A federation of real sites, carried by Flower: its folder, keys and processes."""
