"""Networks solved layer by layer: patches, solved layers, and what their filters are made of."""
