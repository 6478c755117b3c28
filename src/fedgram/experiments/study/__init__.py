"""Studies: tables of runs over the product of data sets, partitions, clients, seeds and methods."""
