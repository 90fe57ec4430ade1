"""What several stores share; no store imports another."""
