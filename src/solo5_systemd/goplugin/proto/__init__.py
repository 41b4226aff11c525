"""The messages that go-plugin itself exchanges, whatever the plugin is for."""
