"""Grade answers and run code, without torch and without the rest of the package."""
