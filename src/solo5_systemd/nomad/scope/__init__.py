"""Tasks in scopes: their tenders are child processes of the plugin."""
