"""Sends incidents to channels: Alertmanager and Apprise."""
