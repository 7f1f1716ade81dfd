"""Candidates and the reference in child processes; inputs; captured values."""
