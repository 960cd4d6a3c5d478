"""Planned kills, and the demo application that they and the README use."""
