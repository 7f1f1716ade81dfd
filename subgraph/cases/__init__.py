"""A region as a folder: written, checked, packed, unpacked."""
