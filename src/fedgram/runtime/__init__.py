"""The process and its machine: files, memory, threads, settings, text."""
