"""Processes: forking, watching, proving dead, recovering. Only this package forks, kills and waits."""
