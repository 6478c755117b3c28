"""From a configuration to recorded results."""
