"""The Nomad task driver `solo5`: Nomad's BasePlugin and Driver services on the engine."""
