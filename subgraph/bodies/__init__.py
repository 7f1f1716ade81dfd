"""Bodies of If, Loop and Scan, and local functions by a call of them: cut and searched as models of
their own."""
