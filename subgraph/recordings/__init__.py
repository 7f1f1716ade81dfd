"""Layer dumps of a device, matched to tensors of the model, compared, narrowed to an interval."""
