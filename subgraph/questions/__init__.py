"""The questions that subcut answers: a module or folder each, above trials and recordings."""
