"""Text: where it comes from and which bytes are held out."""
