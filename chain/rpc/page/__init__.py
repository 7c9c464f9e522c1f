"""The page at the node's `/`: plain HTML, CSS and ES modules, served as they stand here."""
