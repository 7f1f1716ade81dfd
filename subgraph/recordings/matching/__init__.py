"""Layer dumps of a device: read, matched to tensors of the model, compared, narrowed to an
interval."""
