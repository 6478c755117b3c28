"""The one place that knows Flower."""
