"""The commands of ``trainer``, one subject a file."""
