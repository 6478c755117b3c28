"""A federation of sites that can only be written to: both ends of the wire, whatever carries it."""
