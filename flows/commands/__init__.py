"""The command `albert`: `main` names what there is, one file a group; the others do the work."""
