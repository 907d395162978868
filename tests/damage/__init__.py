"""Damaged and hostile directories: every reader answers with an error by name or with what is good, and ends."""
