"""Federations, clients, steps and methods: the interfaces that a method uses."""
