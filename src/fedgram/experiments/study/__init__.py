"""Whole tables of runs: a product of data sets, partitions, clients, seeds and methods."""
