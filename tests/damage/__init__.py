"""Damaged and hostile directories: every reader returns a documented error or the good records, and ends."""
