"""What recorded facts mean: judgement on read-only evidence, nothing written."""
