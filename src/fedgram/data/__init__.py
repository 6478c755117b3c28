"""Data sets from files, and their partition over clients."""
