"""Read, compare and show runs, without torch and Lightning."""
