"""One file, one method, one name: everything else about a method follows from its file."""
