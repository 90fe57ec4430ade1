"""Trainers of others, made resumable: each is imported by its name, by those who use it."""
