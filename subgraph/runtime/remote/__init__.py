"""Runs of a candidate elsewhere: on boards that a command reaches, or as tasks of a cluster."""
