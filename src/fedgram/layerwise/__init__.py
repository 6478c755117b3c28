"""Networks solved layer by layer in closed form: patches, filters, layers and personal heads."""
