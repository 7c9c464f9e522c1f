"""Codecs: how one tensor's update becomes bytes, behind one protocol."""
