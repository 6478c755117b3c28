"""Who is in the total: members, contributions, certificates."""
