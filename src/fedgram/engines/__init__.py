"""Carriers of messages: each is a `Federation`."""
