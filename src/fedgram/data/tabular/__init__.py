"""Tables: columns, schemas, moments."""
