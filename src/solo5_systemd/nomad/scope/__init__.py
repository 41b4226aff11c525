"""Tasks in scopes, whose tenders are children of the plugin."""
