"""The Nomad task driver `solo5`: Nomad's Base and Driver services on the engine."""
