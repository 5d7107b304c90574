"""The pure search for a placement of a tree, or a proof that there is none; imports `core.model`, never `core.log`."""
