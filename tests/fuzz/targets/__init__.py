"""The targets, by the layer whose decoders they drive. Each module has TARGETS, by short names."""
