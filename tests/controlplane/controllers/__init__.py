"""Controllers of other projects on the test control plane: what is built, how it runs, and Grove's operator played."""
