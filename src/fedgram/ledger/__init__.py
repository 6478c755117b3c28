"""The ledger: members, contributions, their total, and certificates of deletion."""
