"""What recorded runs look like: figures as SVG, and one self-contained HTML page."""
