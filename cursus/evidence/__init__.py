"""The one door for evidence: walking and reading a log directory without touching it."""
