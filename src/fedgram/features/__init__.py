"""From a backbone's vectors to the integers that statistics are made of."""
