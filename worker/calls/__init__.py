"""What a turn's provider calls need: leave to begin, money, and a row in the ledger."""
