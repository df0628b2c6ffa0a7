"""Memory of a run, predicted by arithmetic from its configuration and the sizes of its networks."""
