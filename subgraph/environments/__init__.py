"""Python environments apart from subcut's own: converters of other formats, other releases of
runtimes."""
